"""Deep escapes in verified regimes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixtures import example_one
from golden_files import GOLDEN, read_golden

import gfdyn as gf


def test_a_site_that_creeps_past_its_kink_is_decided_on():
    """A unit's z passes 0 by 1e-11, and goes on in each step by less than it was beyond.
    With its gate left off, it comes to 0.4, and the risk rises by a tenth."""
    rng = np.random.default_rng(10)
    x, y = rng.normal(size=(20, 3)), rng.normal(size=(20, 1))
    shapes = (16, 3), (16, 16), (1, 16)
    weights = [1e-4 * rng.normal(size=n) / np.sqrt(n[1]) for n in shapes]
    problem = gf.Problem(gf.Dataset(x, y), gf.losses.squared)
    net = gf.nets.MLP.from_weights([jnp.asarray(w) for w in weights])
    solver = gf.solvers.ExactKinks(rtol=1e-7, verified=True)
    traj = gf.solve(gf.EscapeFlow(problem), net, 130.0, solver=solver, max_steps=2048)
    assert traj.certificate.risk_increase < 1e-7
    assert traj.certificate.energy_residual < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["polar_3layer", "sphere_3layer"])
def test_they_meet_the_oracle(name):
    """Units slide on samples that no unit above passes at the moment."""
    (path,) = [path for path in GOLDEN if path.stem == name]
    flow, net, t1, expected = read_golden(path, 1e-6)
    solver = gf.solvers.ExactKinks(rtol=1e-6, verified=True)
    traj = gf.solve(flow, net, t1, solver=solver, max_steps=1024)
    got = np.concatenate([np.ravel(w) for w in traj.final_direction.weights])
    assert np.linalg.norm(got / np.linalg.norm(got) - expected) <= 1e-5
    assert traj.certificate.verified


@pytest.mark.slow
def test_units_that_die_out_leave_it_to_rest():
    """Example 1 at depth 3: the jumps at their kinks fall below what matters."""
    flow = gf.EscapeFlow(example_one(), localized=True)
    net = gf.nets.MLP([2, 16, 16, 1], key=jax.random.key(0))
    solver = gf.solvers.ExactKinks(rtol=1e-8, verified=True, places=128)
    traj = gf.solve(flow, net, 1500.0, solver=solver, max_steps=1024)
    assert abs(-float(traj.final_risk) - (np.sqrt(2) - 1)) <= 1e-9
