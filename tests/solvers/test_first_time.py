"""The time of an event against closed roots."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gfdyn.solvers._first_time import (
    Bracket,
    first_part,
    first_time,
    first_time_with_last_look,
)


PARTS = 4


def bracket(fall, size):
    """The first part of [0, size] at whose end `fall(time)` is negative."""
    times = size * jnp.arange(PARTS + 1, dtype=size.dtype) / PARTS
    return first_part(jax.vmap(fall)(times), size)


# Each falls below 0 at `root`, and no sooner.
FALLS = {
    "smooth": lambda t, root: (root - t) * (1 + t**2),
    "of several sites": lambda t, root: jnp.minimum(root - t, 1e-3 + 2 * (root - t)),
    "at once": lambda t, root: jnp.where(t < root, 1.0, -1e-5),
    "twice": lambda t, root: (root - t) * (0.9 - t),
}


@pytest.mark.parametrize("fall", FALLS.values(), ids=FALLS.keys())
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_the_first_root_is_met_from_above(fall, dtype):
    @jax.jit
    def found(size, root):
        def event(time):
            return fall(time / size, root), time

        part = bracket(lambda t: fall(t / size, root), size)
        return first_time(event, part, jnp.full_like(size, -1.0))[:2]

    rng = np.random.default_rng(0)
    for size, root in zip(
        10 ** rng.uniform(-6, 2, 20), rng.uniform(0, 0.7, 20), strict=True
    ):
        size, root = jnp.asarray(size, dtype), jnp.asarray(root, dtype)
        time, known = found(size, root)
        assert time.dtype == dtype
        assert time == known
        assert fall(time / size, root) <= 0
        assert abs(time / size - root) <= 64 * jnp.finfo(dtype).eps


def test_nothing_is_found_where_nothing_falls():
    def event(time):
        return 2.0 - time, jnp.asarray(1)

    size = jnp.asarray(1.5)
    part = bracket(lambda t: 2.0 - t, size)
    time, known, _ = first_time(event, part, jnp.asarray(0))
    assert (time, known) == (1.5, 0)


@pytest.mark.parametrize("root, found", [(0.4, 0.4), (1.2, 1.0)])
def test_a_value_that_is_not_known_is_looked_at(root, found):
    whole = Bracket(*map(jnp.asarray, (0.0, 1.0, root, jnp.nan)))
    time, *_ = first_time(lambda t: (root - t, None), whole, None)
    assert time == pytest.approx(found, abs=1e-13)


def test_the_start_is_looked_at_where_its_value_is_not_known():
    whole = Bracket(*map(jnp.asarray, (0.0, 1.0, jnp.nan, jnp.nan)))

    def event(time):
        return 0.4 - time, time

    time, known, at_start = first_time(event, whole, jnp.asarray(-1.0))
    assert time == known == pytest.approx(0.4, abs=1e-13)
    assert at_start == 0


def test_what_is_negative_at_the_start_is_met_there():
    part = bracket(lambda t: -1.0 - t, jnp.asarray(1.0))
    time, *_ = first_time(lambda t: (-1.0 - t, None), part, None)
    assert 0 < time <= 1e-12


def beside(t, root):
    """What falls, one that stays next to 0, and one that falls later."""
    return jnp.stack([root - t, jnp.full_like(t, 1e-13), 3 * (root + 0.02 - t)])


def looked_for(fall, part):
    """The first time in a bracket at which something falls, and how often it is looked."""
    looks = 0

    def event(time):
        nonlocal looks
        looks += 1
        return fall(time), None

    with jax.disable_jit():
        time, *_ = first_time(event, part, None)
    return time, looks


@pytest.mark.parametrize(
    "fall, most",
    [(FALLS["smooth"], 12), (FALLS["at once"], 60), (beside, 14)],
    ids=["smooth", "at once", "beside others"],
)
def test_looks_are_few(fall, most):
    """Bisection alone looks 46 times at least; where it does no better, not much more."""

    def falls(time):
        return fall(time, 0.37)

    time, looks = looked_for(falls, bracket(falls, jnp.asarray(1.0)))
    assert looks <= most
    assert -1e-5 <= jnp.min(falls(time)) < 0


def test_what_falls_from_the_start_takes_three_looks():
    """At the end, at the start and next to it, where neither is known."""
    unknown = jnp.asarray(jnp.nan)
    whole = Bracket(jnp.asarray(0.0), jnp.asarray(1.0), unknown, unknown)
    time, looks = looked_for(lambda t: -1.0 - t, whole)
    assert looks == 3
    assert 0 < time <= 1e-12


def test_what_is_no_number_has_fallen():
    """A value that is NaN from 0.3 on, of which neither end is known."""

    def event(time):
        return jnp.where(time < 0.3, 1.0, jnp.nan), time

    size, unknown = jnp.asarray(1.0), jnp.asarray(jnp.nan)
    whole = Bracket(jnp.zeros_like(size), size, unknown, unknown)
    time, known, at_start = first_time(event, whole, jnp.asarray(-1.0))
    assert 0.3 <= time == known < 0.3 + 1e-13
    assert at_start == 0.0


@pytest.mark.parametrize("surely", [False, True])
@pytest.mark.parametrize("root", [0.4, 2.0], ids=["falls", "does not"])
def test_the_last_look_is_at_the_time_found(root, surely):
    """It is taken if something falls, or surely, once, and tells what is known."""

    def event(time, known, last):
        # Whether it is the last look, when, and of how many
        return root - time, (last, time, jnp.where(last, known[2] + 1, known[2]))

    nothing = jnp.asarray(False), jnp.asarray(-1.0), jnp.asarray(0)
    part = bracket(lambda t: root - t, jnp.asarray(1.0))
    asked = jnp.asarray(surely)
    time, known, _ = first_time_with_last_look(event, part, nothing, asked)
    falls = root < 1
    np.testing.assert_allclose(time, root if falls else 1.0, rtol=1e-13)
    assert time >= root or not falls
    assert [float(k) for k in known] == (
        [1.0, float(time), 1.0] if falls or surely else [0.0, -1.0, 0.0]
    )
