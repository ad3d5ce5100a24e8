"""When sliding sites are let go by the sides of their kinks, and how these are held."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gfdyn as gf
from gfdyn.kinks import GateState, Openness
from gfdyn.kinks._normals import holding, weak_normals


def one(value):
    return (jnp.asarray([[value]]),)


# Gate values, signals, and whether the site is let go and its gate then on: in range; at
# its ends; beyond them; on kinks that repel, where gates in range hold z as well, at an
# unstable balance.
@pytest.mark.parametrize(
    "gate, signal, leaves, opens",
    [
        (0.3, 2.0, False, None),
        (0.0, 2.0, True, False),
        (1.0, 2.0, True, True),
        (-0.1, 2.0, True, False),
        (1.7, 2.0, True, True),
        (0.3, -2.0, True, False),
        (0.9, -2.0, True, True),
        (-5.0, -2.0, True, False),
    ],
)
def test_what_is_let_go(gate, signal, leaves, opens):
    """0 ≤ ν ≤ c with ν = gate · c: the gate in range, and the signal positive."""
    sliding = one(True)
    there = Openness(one(gate), one(signal))
    assert bool(there.out(sliding)[0][0, 0]) == leaves
    nu = gate * signal
    assert leaves == (not 0 < nu < signal)
    assert float(there.room(one(False))[0][0, 0]) == np.inf
    if leaves:
        after = there.release(GateState(one(False), sliding, sliding), sliding)
        assert bool(after.on[0][0, 0]) == opens and not after.sliding[0].any()


def test_a_kink_that_turns_is_left_to_the_side_of_its_gate_before():
    """As ν and c pass 0 together their quotient is rounding."""
    before, now = Openness(one(0.3), one(2.0)), Openness(one(0.8), one(-1e-18))
    gates = GateState(one(False), one(True), one(True))
    for slid, opens in ((True, False), (False, True)):
        there = now.as_before(before, one(slid))
        assert bool(there.release(gates, one(True)).on[0][0, 0]) == opens
    attracts = Openness(one(0.8), one(1e-18)).as_before(before, one(True))
    assert float(attracts.value[0][0, 0]) == 0.8


@pytest.mark.slow
def test_a_gate_that_leaves_and_comes_back_within_a_step():
    """A gate falls below 0, as its signal goes to 0, comes back from above 1 once this is
    negative, and is in range again at the end of one step of tolerance 3e-5."""
    data = gf.data.teacher(16, [3, 4, 1], key=jax.random.key(0))
    flow = gf.EscapeFlow(gf.Problem(data, gf.losses.squared))
    net = gf.nets.MLP([3, 8, 8, 1], key=jax.random.key(1))

    def end(rtol, verified):
        solver = gf.solvers.ExactKinks(rtol=rtol, verified=verified)
        weights = gf.solve(flow, net, t1=3.0, solver=solver).final.weights
        return np.concatenate([np.ravel(w) for w in weights])

    truth = end(1e-8, verified=True)
    for rtol in (1e-4, 3e-5, 1e-5):
        gap = np.linalg.norm(end(rtol, verified=False) - truth)
        assert gap <= rtol * np.linalg.norm(truth)


def test_nearly_parallel_kinks_are_held_up_to_rounding():
    """Rates of two kinks at an angle of 1e-4 that differ by rounding take multipliers of a
    hundred signals to be held to the last digit, and these move what is beside."""
    angle, rate, size = 1e-4, 1e-8, 1e-6
    normals = np.array([[1.0, 0.0], [np.cos(angle), np.sin(angle)]])
    gram, both = jnp.asarray(normals @ normals.T), jnp.ones(2, bool)
    given = jnp.asarray([rate, rate + 1e-12])
    rounding = jnp.full(2, 1e-11)
    exact = holding(gram, both).multipliers(given)
    assert np.abs(exact).max() > 50 * size
    weak = weak_normals(gram, rounding, jnp.asarray(size))
    nu = holding(gram, both, weak).multipliers(given)
    assert np.abs(nu).max() <= size
    assert np.abs(given - gram @ nu).max() <= rounding[0]
    np.testing.assert_allclose(nu.sum(), rate, rtol=1e-3)
