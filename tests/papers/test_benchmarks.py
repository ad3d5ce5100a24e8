"""The benchmarks run, at a small size, and measure what they say."""

import json
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import gfdyn as gf


FOLDER = Path(__file__).parents[2] / "benchmarks"


def smoke(name, out):
    """The report of a benchmark at its small size."""
    script = str(FOLDER / f"{name}.py")
    command = [sys.executable, script, "--smoke", "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    report = json.loads((out / f"{name}.json").read_text())
    assert report["machine"]["processor"] and report["machine"]["jax"]
    return report


@pytest.mark.slow
def test_work_precision(tmp_path):
    report = smoke("work_precision", tmp_path)
    rows = report["rows"]
    by_method = {row["method"]: row for row in rows}
    assert {"ExactKinks", "diffrax Tsit5", "scipy LSODA", "gradient descent"} <= set(
        by_method
    )
    assert all(row["error"] is not None for row in rows if row["finished"])
    assert by_method["ExactKinks"]["finished"]
    assert by_method["ExactKinks"]["error"] <= 1e-2
    # Cut off where the work allowed is used up
    assert not by_method["scipy LSODA"]["finished"]
    assert by_method["scipy LSODA"]["error"] is None
    assert (tmp_path / "work_precision.png").stat().st_size > 10_000


@pytest.mark.slow
def test_plateaus(tmp_path):
    rows = {row["case"]: row for row in smoke("plateaus", tmp_path)["rows"]}
    names = ["linear", "tanh", "relu", "relu, kinks", "linear, not stiff"]
    assert list(rows) == names
    for row in rows.values():
        assert all(run["finished"] for run in row["stabilised"] + row["plain"])
    assert min(rows["linear"]["saved"]) > 3
    assert max(rows["linear, not stiff"]["saved"]) == pytest.approx(1.0, abs=0.1)


@pytest.mark.slow
def test_chains(tmp_path):
    report = smoke("chains", tmp_path)
    linear, orthogonal, teachers = (
        report[name] for name in ("linear", "orthogonal", "teachers")
    )
    assert [row["depth"] for row in linear] == [2]
    assert linear[0]["runs"][-1]["saddles"] == 3
    assert linear[0]["runs"][-1]["error_log_time"] < 1e-6
    assert all(row["finished"] for row in orthogonal)
    away = teachers[0]["away"]
    assert away[0] / away[1] == pytest.approx(2.0, rel=0.2)


@pytest.mark.slow
def test_campaign(tmp_path):
    for row in smoke("campaign", tmp_path)["rows"]:
        for way in ("sides", "verified"):
            ended = row[way]
            number = ended["in line"] + len(ended["elsewhere"]) + len(ended["failed"])
            assert number == row["seeds"] and ended["in line"] and ended["seconds"] > 0


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_descents_of_the_campaign_agree(monkeypatch):
    """In C++, in JAX and by `gf.descend`: two seeds, so that they are kept apart."""
    monkeypatch.syspath_prepend(str(FOLDER))
    cases, by_step = import_module("_cases"), import_module("_descents")
    flows, nets = zip(*(cases.drawn("2-4-3-1:5", seed) for seed in range(2)), strict=True)
    steps = (1e-2, 3e-3)
    compiled = by_step.in_cpp(flows, nets, steps, 3.0)
    np.testing.assert_allclose(
        compiled, by_step.in_jax(flows, nets, steps, 3.0), rtol=1e-12, atol=1e-14
    )
    for flow, net, ends in zip(flows, nets, compiled, strict=True):
        for step, end in zip(steps, ends, strict=True):
            descent = gf.descend(flow.problem, net, step, round(3.0 / step))
            expected = by_step.flat(descent.final)
            np.testing.assert_allclose(end, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.slow
def test_digits(tmp_path):
    rows = smoke("digits", tmp_path)["rows"]
    methods = ["ExactKinks", "ExactKinks, Bosh3", "Adaptive"]
    assert {row["method"] for row in rows} == set(methods)
    for row in rows:
        assert 0 < row["error"] <= 100 * row["rtol"]
        assert row["evaluations"] > row["steps"] > 1


@pytest.mark.slow
def test_sgd_step(tmp_path):
    (row,) = smoke("sgd_step", tmp_path)["rows"]
    times = row["microseconds"]
    names = {"bare", "single", "seeds", "bare_seeds", "sharded"}
    assert set(times) == set(row["processor_microseconds"]) == names
    assert all(0 < time < 1e6 for time in times.values())
    assert row["step"] == pytest.approx(times["single"] / times["bare"])
    assert row["seeds"] == pytest.approx(times["seeds"] / times["single"])


@pytest.mark.slow
def test_sweeps(tmp_path):
    (row,) = smoke("sweeps", tmp_path)["rows"]
    rates = row["points_per_second"]
    assert set(rates) == {"1", "2"} and min(rates.values()) > 0
    assert row["ratio"] == pytest.approx(rates["2"] / rates["1"])


@pytest.mark.slow
def test_first_day(tmp_path):
    report = smoke("first_day", tmp_path)
    assert 0 < report["import"] < 60
    (row,) = report["processes"]
    for each in (row["first"], row["second"]):
        assert 0 < each["solve"] < each["process"]
    assert row["second"]["solve"] < row["first"]["solve"]


def test_an_afternoon_takes_what_its_page_promises(monkeypatch):
    """As it was measured last, of the sections that the page has."""
    monkeypatch.syspath_prepend(str(FOLDER))
    sections = import_module("first_day").sections()
    rows = json.loads((FOLDER / "first_day.json").read_text("utf-8"))["afternoon"]
    promised = [(title, seconds) for title, seconds, _ in sections]
    assert promised == [(row["section"], row["promised"]) for row in rows]
    assert all(0 < row["seconds"] <= row["promised"] for row in rows)


@pytest.mark.slow
def test_gpu(tmp_path):
    """On the processor; its ratios are those of the times that it tells."""
    report = smoke("gpu", tmp_path)
    # The device is the processor itself.
    assert report["agreement"][0]["units_of_rtol"] == {"gradient": 0.0, "escape": 0.0}
    for row in report["field"]:
        for rates in (row["highest"], row["default"]):
            assert 0 < rates["part"] == pytest.approx(rates["field"] / rates["ceiling"])
    for row in report["steps"]:
        exact, adaptive = row["ExactKinks"], row["Adaptive"]
        assert row["ratio"] == pytest.approx(exact["seconds"] / adaptive["seconds"])
        assert exact["kernels"] > adaptive["kernels"] > 10
        assert exact["evaluations"] >= adaptive["evaluations"] >= 6
    for row in report["ensembles"]:
        each = row["seconds_each"]
        assert row["faster"] == pytest.approx(each["one by one"] / each["together"])
    assert report["escape"][0]["seconds"] > 0


def test_kernels_are_counted():
    """A fusion is one, of all that run in loops and branches; bookkeeping is none."""
    program = """
HloModule m

%fused (p: f32[2]) -> f32[2] {
  %p = f32[2]{0} parameter(0)
  %a = f32[2]{0} add(%p, %p)
  ROOT %m = f32[2]{0} multiply(%a, %a)
}

%body (s: (f32[2])) -> (f32[2]) {
  %s = (f32[2]{0}) parameter(0)
  %x = f32[2]{0} get-tuple-element(%s), index=0
  %f = f32[2]{0} fusion(%x), kind=kLoop, calls=%fused
  %c = f32[2]{0} copy(%f)
  ROOT %t = (f32[2]{0}) tuple(%c)
}

%condition (s: (f32[2])) -> pred[] {
  %s.1 = (f32[2]{0}) parameter(0)
  ROOT %k = pred[] constant(false)
}

ENTRY %main (p: f32[2]) -> (f32[2]) {
  %p.1 = f32[2]{0} parameter(0)
  %d = f32[2]{0} negate(%p.1)
  %t.1 = (f32[2]{0}) tuple(%d)
  ROOT %w = (f32[2]{0}) while(%t.1), condition=%condition, body=%body
}
"""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        assert import_module("_kernels").num_kernels(program) == 3
