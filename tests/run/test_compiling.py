"""What is compiled is counted, and spoken of where it takes long."""

import gc
import logging
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixtures import sliding

import gfdyn as gf
from gfdyn.run import _compiling, _programs


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
    # Other data of another shape
    fewer = gf.Problem(gf.Dataset(problem.data.x[1:], problem.data.y[1:]), problem.loss)
    third = gf.solve(gf.GradientFlow(fewer), net, t1=0.1, solver=solver)
    assert third.stats["num_compilations"] > 0
    descents = [gf.descend(problem, net, rate, 10) for rate in (0.01, 0.02)]
    assert descents[0].stats["num_compilations"] > 0
    assert descents[1].stats["num_compilations"] == 0


@pytest.mark.parametrize("few", [50_000, 0])
def test_other_numbers_of_saves_events_and_attempts_do_not_compile_again(few, monkeypatch):
    """Nor does the mode of derivatives, where none is taken; all is as was asked for."""
    monkeypatch.setattr(_programs, "_FEW", few)
    problem, net = sliding()
    flow = gf.GradientFlow(problem)
    first = gf.solve(flow, net, ts=jnp.linspace(0.0, 3.0, 31), kinks=61)
    assert first.kinks is not None and len(first.ts) == 31
    others: Any = (
        (32, 62, {}),
        (31, 63, dict(max_steps=2000)),
        (32, 64, dict(derivatives="forward")),
    )
    for saves, events, options in others:
        ts = jnp.linspace(0.0, 3.0, saves)
        other = gf.solve(flow, net, ts=ts, kinks=events, **options)
        assert other.stats["num_compilations"] == 0 and other.kinks is not None
        np.testing.assert_array_equal(other.ts, ts)
        np.testing.assert_array_equal(other.kinks.time, first.kinks.time)
        for a, b in zip(other.final.weights, first.final.weights, strict=True):
            np.testing.assert_array_equal(a, b)
    happened = len(first.kinks.time)
    fewer = gf.solve(flow, net, ts=[3.0], kinks=happened - 2, max_steps=2000).kinks
    assert fewer is not None and len(fewer.time) == happened - 2 and fewer.num_lost == 2


def test_no_more_room_than_an_eighth_in_large_networks():
    rooms = [_programs._rounded_up(number, small=False) for number in range(1, 5000)]
    assert all(1 <= room / (i + 1) <= 1.125 for i, room in enumerate(rooms))
    assert rooms[100] == 104 and len(set(rooms)) < 100
    assert _programs._rounded_up(3, small=True) == _programs._rounded_up(256, small=True)


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
