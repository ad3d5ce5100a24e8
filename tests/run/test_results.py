"""A result is called by its name."""

import jax
import jax.numpy as jnp
import pytest

import gfdyn as gf
from gfdyn.run._results import choose, name_of, reason_of


def test_results_print_their_names():
    assert str(gf.RESULTS.successful) == "gfdyn.RESULTS<successful>"
    assert str(gf.RESULTS.stopped) == "gfdyn.RESULTS<stopped>"
    assert str(gf.RESULTS.blew_up).startswith(
        "gfdyn.RESULTS<blew_up: The parameters blew up in finite time"
    )


@pytest.mark.parametrize("name", ["successful", "max_steps_reached", "collapsed"])
def test_name_and_reason_make_the_text(name):
    """Of a result that a solve gives back as well: not the very item of the class."""
    item = getattr(gf.RESULTS, name)
    item = choose(jnp.asarray(True), item, gf.RESULTS.stopped)
    reason = reason_of(item)
    assert name_of(item) == name
    assert gf.RESULTS[item] == (f"{name}: {reason}" if reason else name)
    assert bool(reason) == (name != "successful")


def test_a_batch_of_results_prints_all_names():
    choose_each = jax.vmap(choose, (0, None, None))
    met = jnp.asarray([True, False])
    ends = choose_each(met, gf.RESULTS.stopped, gf.RESULTS.successful)
    assert gf.RESULTS[ends] == "['stopped' 'successful']"


def test_only_results_have_names():
    wrong: object = 3
    with pytest.raises(ValueError, match="must be an enumeration item"):
        gf.RESULTS[wrong]  # pyright: ignore[reportArgumentType]
