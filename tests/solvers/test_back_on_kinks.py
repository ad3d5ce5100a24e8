"""What slides is on its kink after each step."""

import jax
import numpy as np
import pytest
from fixtures import example_one

import gfdyn as gf


@pytest.mark.parametrize("seed", [2, 4])
def test_what_steps_leave_kinks_by_does_not_add_up(seed):
    """In single precision: each unit comes to rest on the kink of two antipodal samples,
    and stays on it to rounding of θ."""
    problem = example_one(dtype=np.float32)
    net = gf.nets.MLP([2, 4, 1], key=jax.random.key(seed), dtype=np.float32)
    flow, solver = gf.EscapeFlow(problem, localized=True), gf.solvers.ExactKinks(rtol=1e-5)
    end = gf.solve(flow, net, 30.0, solver=solver).final_direction
    off = np.abs(end.preactivations(problem.data.x)[0])
    at_kinks = off < 1e-3
    np.testing.assert_array_equal(at_kinks.sum(axis=0), 2)
    rounding = np.finfo(np.float32).eps * gf.nets.norm(end)
    assert off[at_kinks].max() <= 4 * rounding
