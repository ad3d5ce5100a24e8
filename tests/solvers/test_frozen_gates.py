"""Which gates a step of `ExactKinks` holds fixed."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import gfdyn as gf
from gfdyn.flows import State


@pytest.mark.parametrize("verified", [True, False])
@pytest.mark.parametrize("weight, decides", [(2e-4, True), (0.0, False)])
def test_what_was_decided_on_stays_fixed_at_its_kink(weight, decides, verified):
    """A unit with so small an output weight that no gate of it matters in the step. It was
    decided on at two samples, at the kink of one of which it is: that gate alone stays, in
    verified regimes, as long as it is still decided on; of a dead unit it does not.
    """
    data = gf.Dataset(jnp.asarray([[1.0, 0.0], [0.5, 1.0]]), jnp.asarray([[2.0], [-1.0]]))
    flow = gf.GradientFlow(gf.Problem(data, gf.losses.squared))
    first, last = jnp.asarray([[0.0, 1.0], [1.0, 0.3]]), jnp.asarray([[weight, 1.0]])
    net = gf.nets.MLP.from_weights([first, last])
    solver = gf.solvers.ExactKinks(rtol=1e-6, verified=verified)
    state, size = State(net, jnp.asarray(0.0)), jnp.asarray(1e-4)
    before, _ = solver.init(flow, state, size)
    decided = (jnp.asarray([[True, False], [True, False]]),)
    before = eqx.tree_at(lambda b: b.gates.frozen, before, decided)
    after = solver.step(flow, state, size, before)
    assert after.accepted
    (frozen,) = after.solver_state.gates.frozen
    np.testing.assert_array_equal(frozen[:, 0], [verified and decides, False])
