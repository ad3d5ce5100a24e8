"""Deep escapes in verified regimes."""

import jax.numpy as jnp
import numpy as np

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
