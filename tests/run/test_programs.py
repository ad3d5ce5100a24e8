"""Small networks compile with fewer optimisations, where nothing speaks against it."""

import jax
import jax.numpy as jnp
import pytest
from fixtures import sliding

import gfdyn as gf
from gfdyn.run import _programs, make_task
from gfdyn.run._programs import compiled


@pytest.fixture
def flags(monkeypatch):
    """What XLA is told, with these flags."""

    def told(text):
        monkeypatch.setenv("XLA_FLAGS", text)
        _programs._options.cache_clear()
        return _programs._options()

    yield told
    _programs._options.cache_clear()


def test_flags_go_before_what_small_programs_do_without(flags):
    assert flags("") == _programs._LESS
    assert list(flags("--xla_backend_optimization_level=0")) == [
        "xla_cpu_use_fusion_emitters"
    ]


def test_what_xla_does_not_know_is_left_out(flags, monkeypatch):
    monkeypatch.setattr(_programs, "_LESS", {"xla_no_such_option": True})
    assert flags("") == {}


def test_only_small_networks_of_their_own_compile_quickly(monkeypatch):
    """Neither large ones nor what is part of a larger program, which would refuse."""
    asked = []
    monkeypatch.setattr(_programs, "_options", lambda: asked.append(1) or {})
    problem, net = sliding()
    task = make_task(
        gf.GradientFlow(problem), net, 1.0, [1.0], 0, None, (), 0.0, 10, "reverse"
    )
    count = compiled(lambda net: net)(lambda task, net: jnp.size(net.weights[0]))
    assert count(task, net) == net.weights[0].size and asked == [1]
    assert jax.jit(lambda n: count(task, n))(net) == net.weights[0].size
    assert asked == [1]
    monkeypatch.setattr(_programs, "_FEW", 10)
    count = compiled(lambda net: net)(lambda task, net: jnp.size(net.weights[0]))
    assert count(task, net) == net.weights[0].size and asked == [1]
