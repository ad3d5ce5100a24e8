"""What is compiled is counted, and spoken of where it takes long."""

import gc
import logging
import time

import jax
import jax.numpy as jnp
import pytest
from fixtures import sliding

import gfdyn as gf
from gfdyn.run import _compiling


def test_a_shape_compiles_once():
    problem, net = sliding()
    flow = gf.GradientFlow(problem)
    jax.clear_caches()
    solver = gf.solvers.Adaptive(rtol=1e-4)
    first = gf.solve(flow, net, t1=0.1, solver=solver)
    assert first.stats["num_compilations"] >= 3
    # Other data, rates and tolerances of the same shape
    problem, net = sliding(1)
    solver = gf.solvers.Adaptive(rtol=1e-5)
    second = gf.solve(gf.GradientFlow(problem), net, t1=0.2, solver=solver)
    assert second.stats["num_compilations"] == 0
    # Another number of saves is another shape
    ts = jnp.linspace(0.0, 0.2, 7)
    assert gf.solve(flow, net, ts=ts, solver=solver).stats["num_compilations"] > 0
    descents = [gf.descend(problem, net, rate, 10) for rate in (0.01, 0.02)]
    assert descents[0].stats["num_compilations"] > 0
    assert descents[1].stats["num_compilations"] == 0


def test_cycles_are_not_collected_while_a_program_is_made():
    collecting = []

    @jax.jit
    def traced(x):
        collecting.append(gc.isenabled())
        _compiling.tracing()
        collecting.append(gc.isenabled())
        return x

    @jax.jit
    def fails(x):
        _compiling.tracing()
        raise RuntimeError("while it is traced")

    with _compiling.counted():
        with _compiling.announced():
            traced(jnp.zeros(1))
        assert gc.isenabled()
        # Where the user has switched it off, it stays so
        gc.disable()
        with _compiling.announced():
            traced(jnp.zeros(2))
        assert not gc.isenabled()
        gc.enable()
    with pytest.raises(RuntimeError, match="traced"), _compiling.counted():
        fails(jnp.zeros(3))
    assert gc.isenabled()
    assert collecting == [True, False, False, False]


def test_long_compilations_are_spoken_of_once(caplog, monkeypatch):
    monkeypatch.setattr(_compiling, "_PATIENCE", 0.05)

    @jax.jit
    def slow(x):
        _compiling.tracing()
        time.sleep(1.0)
        return x

    with caplog.at_level(logging.WARNING), _compiling.counted() as compilations:
        for shape in (1, 2):
            with _compiling.announced():
                slow(jnp.zeros(shape))
    assert compilations.count == 2
    assert [record.message for record in caplog.records] == [_compiling._MESSAGE]
    assert "compiling (once for each shape" in _compiling._MESSAGE


def test_short_ones_that_are_long_together_are_spoken_of(caplog, monkeypatch):
    monkeypatch.setattr(_compiling, "_PATIENCE", 0.6)

    @jax.jit
    def short(x):
        _compiling.tracing()
        time.sleep(0.4)
        return x

    with caplog.at_level(logging.WARNING), _compiling.counted() as compilations:
        with _compiling.announced():
            short(jnp.zeros(1))
        assert not compilations.announced
        with _compiling.announced():
            short(jnp.zeros(2))
        assert compilations.announced
    assert [record.message for record in caplog.records] == [_compiling._MESSAGE]


@pytest.mark.parametrize("known", [True, False])
def test_short_ones_and_none_are_not(caplog, known):
    @jax.jit
    def quick(x):
        _compiling.tracing()
        return x

    if known:
        quick(jnp.zeros(3))
    with caplog.at_level(logging.WARNING), _compiling.counted() as compilations:
        with _compiling.announced():
            quick(jnp.zeros(3))
        # Nothing waits to speak any longer.
        assert compilations._timer is None and not compilations.announced
    assert compilations.count == (0 if known else 1)
    assert not caplog.records
