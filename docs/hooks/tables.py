"""The tables of measurements, drawn from what benchmarks and experiments have written."""

import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stamps import experiment, shown, stamp, stamped


BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
_MARK = re.compile(r"^<!-- (table|claims): ([\w/]+) -->$", re.MULTILINE)
# The error at which methods are compared
_ERROR = 1e-5
_DESCENTS = ("gradient descent", "gradient descent, PyTorch")


def filled(markdown: str) -> str:
    """The page, a table in place of each `<!-- table: NAME -->`, `<!-- claims: NAME -->`;
    below what an experiment has measured, how it was run.

    Raises:
        KeyError, FileNotFoundError: on a name that no table has, or no experiment.
    """
    have_figures = shown(markdown)

    def table(match: re.Match[str]) -> str:
        kind, name = match.groups()
        if kind == "table":
            return TABLES[name]()
        # Below its figures it says so already.
        return claims(name) if name in have_figures else f"{claims(name)}\n\n{stamp(name)}"

    return _MARK.sub(table, stamped(markdown))


def report(name: str) -> Any:
    """What one benchmark has written."""
    return json.loads((BENCHMARKS / f"{name}.json").read_text("utf-8"))


def machine(*measured: Any) -> str:
    """A line for each machine: where these were measured, and with which versions."""
    loads: dict[tuple[str, str], list[str]] = {}
    for about in (each["machine"] for each in measured):
        named = [f"{name} {about[name]}" for name in ("jax", "diffrax") if name in about]
        place = f"{about['processor']}, {about['cores']} cores", ", ".join(named)
        loads.setdefault(place, []).append(str(about["load"]))
    lines = [
        f"*{cores}, load {', '.join(load)}; {packages}.*"
        for (cores, packages), load in loads.items()
    ]
    return "\n\n".join(lines)


def claims(name: str) -> str:
    """The claims of an experiment at full size, with their verdicts."""
    rows = []
    for claim in experiment(name)["claims"]:
        statement = _cell_text(f"{claim['claim']} ({claim['source']})")
        measured = _number(claim["measured"])
        rows.append([statement, claim["verdict"], measured, _range(claim)])
    return _table(["claim", "verdict", "measured", "expected"], rows)


def _cell_text(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("_", "\\_")


def _number(value: float | str | None) -> str:
    return "–" if value is None else value if isinstance(value, str) else f"{value:.4g}"


def _range(claim: Any) -> str:
    low, high = claim["low"], claim["high"]
    if low is None or high is None:
        return f"≤ {_number(high)}" if low is None else f"≥ {_number(low)}"
    return _number(low) if low == high else f"{_number(low)} to {_number(high)}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rules = ["---"] + ["---:"] * (len(header) - 1)
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rules, *rows))


def _seconds(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"


def _fastest(rows: Sequence[Any]) -> Any:
    """The fastest method, each at its loosest tolerance within the error, or None."""
    loosest: dict[str, Any] = {}
    for row in sorted(rows, key=lambda row: -row["tolerance"]):
        if row["finished"] and row["error"] <= _ERROR:
            loosest.setdefault(row["method"], row)
    return min(loosest.values(), key=lambda row: row["seconds"], default=None)


def _cell(rows: Sequence[Any]) -> str:
    if not rows:
        return "–"
    if (best := _fastest(rows)) is None:
        return "not reached"
    steps = f" ({best['steps']:,} steps)" if best["steps"] else ""
    return _seconds(best["seconds"]) + steps


def work_precision() -> str:
    """Seconds to the error, for each problem and kind of method."""
    measured = report("work_precision")
    header = ["problem", "`ExactKinks`", "best ordinary solver", *_DESCENTS]
    lines = []
    for problem in dict.fromkeys(row["problem"] for row in measured["rows"]):
        rows = [row for row in measured["rows"] if row["problem"] == problem]
        exact = [row for row in rows if row["method"] == "ExactKinks"]
        descents = [[r for r in rows if r["method"] == name] for name in _DESCENTS]
        others = [r for r in rows if r["method"] not in ("ExactKinks", *_DESCENTS)]
        lines.append([problem, *(_cell(some) for some in (exact, others, *descents))])
    return f"{_table(header, lines)}\n\n{machine(measured)}"


def campaign() -> str:
    """Runs that end where gradient descent of small steps does, of each kind of network."""
    header = ["networks", "runs", "in line, sides", "in line, verified", "without an end"]
    header += ["with a choice", "seconds, verified over sides"]
    reports = [report(f"campaign{kind}") for kind in ("", "_kinds", "_escape")]
    lines = []
    for row in (row for measured in reports for row in measured["rows"]):
        sides, verified = row["sides"], row["verified"]
        counts = [row["seeds"], sides["in line"], verified["in line"]]
        counts += [len(verified["failed"]), verified["choices"]]
        lines.append([_network(row["case"]), *map(str, counts), f"{row['ratio']:.1f}"])
    return f"{_table(header, lines)}\n\n{machine(*reports)}"


def _network(case: str) -> str:
    """`biases/3-6-1:16` as "biases, [3, 6, 1], 16 samples"."""
    *kind, shape = case.split("/")
    widths, samples = shape.split(":")
    return ", ".join([*kind, f"[{widths.replace('-', ', ')}]", f"{samples} samples"])


def digits() -> str:
    """The error and the work on six draws of 300 digits, of each method and tolerance."""
    measured = report("digits")
    groups: dict[tuple[str, float], list[Any]] = {}
    for row in measured["rows"]:
        groups.setdefault((row["method"], row["rtol"]), []).append(row)
    header = ["method", "rtol", "draws", "error, median", "largest", "field evaluations"]
    lines = []
    for (method, rtol), rows in sorted(groups.items()):
        errors = sorted(row["error"] for row in rows)
        work = sorted(row["evaluations"] for row in rows)
        middle = len(rows) // 2
        numbers = f"{errors[middle]:.1e}", f"{errors[-1]:.1e}", f"{work[middle]:,}"
        lines.append([method, f"{rtol:.0e}", str(len(rows)), *numbers])
    return f"{_table(header, lines)}\n\n{machine(measured)}"


def sgd_step() -> str:
    """Microseconds of a step of `gf.descend`, beside a loop that is jitted by hand."""
    measured = report("sgd_step")
    header = ["precision", "loop by hand", "`gf.descend`", "ratio", "8 seeds, 2 devices"]
    lines = []
    for row in measured["rows"]:
        times = row["microseconds"]
        numbers = times["bare"], times["single"], row["step"], times["sharded"]
        lines.append([row["dtype"], *(f"{number:.3g}" for number in numbers)])
    return f"{_table(header, lines)}\n\n{machine(measured)}"


def sweeps() -> str:
    """Points of a sweep a second, in one process and in two."""
    measured = report("sweeps")
    header = ["points", "steps each", "a second, 1 worker", "2 workers", "ratio"]
    lines = []
    for row in measured["rows"]:
        rates = row["points_per_second"]
        numbers = f"{rates['1']:.2f}", f"{rates['2']:.2f}", f"{row['ratio']:.2f}"
        lines.append([str(row["points"]), f"{row['steps']:,}", *numbers])
    return f"{_table(header, lines)}\n\n{machine(measured)}"


def plateaus() -> str:
    """How many times fewer field evaluations the stabilised method takes, by tolerance."""
    measured = report("plateaus")
    rtols = [row["rtol"] for row in measured["rows"][0]["stabilised"]]
    header = ["network", *(f"rtol {rtol:.0e}" for rtol in rtols), "events at kinks"]
    lines = []
    for row in measured["rows"]:
        events = row["stabilised"][-1]["events"]
        saved = (f"{number:.1f}" for number in row["saved"])
        lines.append([row["case"], *saved, f"{events:,}"])
    return f"{_table(header, lines)}\n\n{machine(measured)}"


def chains() -> str:
    """Steps through chains of saddles, by the size of the start, and of teachers."""
    measured = report("chains")
    starts = [run["log_norm"] for run in measured["linear"][0]["runs"]]
    sizes = [f"from {math.exp(starts[0]):.2g}", *(f"e^{log:.0f}" for log in starts[1:])]
    header = ["network", *sizes, "growth"]
    lines = []
    for row in measured["linear"]:
        steps = [str(run["steps"]) for run in row["runs"]]
        name = f"linear, {row['depth']} layers, strengths {row['strengths']}"
        lines.append([name, *steps, f"{row['growth']:.2f}"])
    steps = [row["steps"] for row in measured["orthogonal"]]
    growth = f"{steps[-1] / steps[0]:.2f}"
    lines.append(["ReLU, orthogonal data", *map(str, steps), growth])
    each = sorted(row["steps"] / row["saddles"] for row in measured["teachers"])
    seeds = f"{len(each)} ReLU teachers of two neurons"
    said = f"{seeds}, steps a saddle: {each[0]:.0f} to {each[-1]:.0f}"
    return f"{_table(header, lines)}\n\n{said}.\n\n{machine(measured)}"


def first_day() -> str:
    """Seconds of a first and a second process, and of the afternoon's sections."""
    measured = report("first_day")
    lines = [["import", f"{measured['import']:.1f}", "–"]]
    for row in measured["processes"]:
        widths = f"[{row['widths'].replace('-', ', ')}]"
        for what, name in (
            ("solve", f"a first `gf.solve` of {widths}"),
            ("process", "with starting Python, the imports and the data"),
        ):
            times = (f"{row[of][what]:.1f}" for of in ("first", "second"))
            lines.append([name, *times])
    for row in measured["afternoon"]:
        lines.append([row["section"], f"{row['seconds']:.0f}", "–"])
    header = ["", "seconds", "of a second process"]
    return f"{_table(header, lines)}\n\n{machine(measured)}"


def gpu() -> str:
    """What a GPU does: large networks, single steps, ensembles and `make run`'s job."""
    measured, rows = report("gpu"), []
    for row in measured["field"]:
        parts = " and ".join(f"{row[of]['part']:.2f}" for of in ("highest", "default"))
        name = f"{row['widths']}, {row['samples']:,} samples: gradient"
        rows.append([name, f"{parts} of the matrix products' rate (float32, TF32)"])
    for row in measured["steps"]:
        exact, adaptive = (1e3 * row[s]["seconds"] for s in ("ExactKinks", "Adaptive"))
        times = f"{exact:.2g} ms, {row['ratio']:.1f} times `Adaptive`'s ({adaptive:.2g} ms)"
        rows.append([f"{row['gates']:,} gates: an attempt of `ExactKinks`", times])
    for row in measured["ensembles"]:
        together = 1e3 * row["seconds_each"]["together"]
        times = f"{together:.2g} ms each, {row['faster']:.0f} times faster than one by one"
        rows.append([f"{row['networks']:,} networks [3, 8, 1] under `vmap`", times])
    job = f"{measured['escape'][0]['seconds']:.0f} s, compiled before"
    rows.append(["`gfdyn escape`, the job of `make run`", job])
    device = f"*{measured['machine']['device']}.* {machine(measured)}"
    return f"{_table(['', 'measured'], rows)}\n\n{device}"


TABLES: dict[str, Callable[[], str]] = {
    table.__name__: table
    for table in (
        work_precision,
        campaign,
        digits,
        plateaus,
        chains,
        sgd_step,
        sweeps,
        first_day,
        gpu,
    )
}
