"""Escapes of two layers, by default in verified regimes, against gradient descent."""

import jax.numpy as jnp
import numpy as np
import pytest
from reference import descended, flatten

import gfdyn as gf
from gfdyn.flows import BranchFlow


@pytest.mark.parametrize("seed", [1, 18])
@pytest.mark.parametrize("kind", [gf.EscapeFlow, BranchFlow])
def test_a_unit_that_slides_comes_to_weights_of_nothing(kind, seed):
    """Two inputs: on its kink a unit has one way to go, and passes 0 on it, where all of
    its gates flip at once. By the sides of each kink alone the ends are 0.9 and 8.5 % off.
    """
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(20, 2)), rng.normal(size=(20, 1))
    shapes = (20, 2), (1, 20)
    weights = [0.1 * rng.normal(size=n) / np.sqrt(n[1]) for n in shapes]
    problem = gf.Problem(gf.Dataset(x, y), gf.losses.squared)
    net = gf.nets.MLP.from_weights([jnp.asarray(w) for w in weights])
    solver = gf.solvers.ExactKinks(rtol=1e-7)
    traj = gf.solve(kind(problem), net, 40.0, solver=solver, max_steps=2048)
    assert traj.certificate.choices == 0
    found = flatten(traj.final.weights)
    coarse, fine = (
        np.linalg.norm(flatten(descended(x, y, weights, 40.0, steps)) - found)
        for steps in (20_000, 80_000)
    )
    assert fine < 0.4 * coarse and fine < 2e-5 * np.linalg.norm(found)
