"""What a user waits for on the first day, each in a process of its own.

* `import`: the import of gfdyn;
* `processes`: from the start of Python to a first trajectory of a small network, solved
  by the default solver, in a first process and in a second one that finds its programs
  (`gf.enable_cache`); of which `solve` is the call of `gf.solve` alone;
* `afternoon`: the sections of `docs/afternoon.md` as they are typed, compiling included,
  beside the seconds that the page promises.

Measured on one core where the system allows a process to be bound to it; the least of
several runs.

    python benchmarks/first_day.py [--smoke]

writes `first_day.json`, with the machine and the versions.
"""

import doctest
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from _report import write_report


PACKAGES = ("jax", "diffrax", "equinox", "numpy")
PAGE = Path(__file__).parents[1] / "docs" / "afternoon.md"
_PROMISE = re.compile(r"^Within (\d+) s\b", re.MULTILINE)

_IMPORT = """
import time
begin = time.perf_counter()
import gfdyn
print(time.perf_counter() - begin)
"""
_SOLVE = """
import sys, time
import jax
import gfdyn as gf
jax.config.update("jax_enable_x64", True)
gf.enable_cache(sys.argv[1])
keys = jax.random.split(jax.random.key(0), 3)
widths = [int(width) for width in sys.argv[2].split("-")]
x = jax.random.normal(keys[0], (20, widths[0]))
y = jax.random.normal(keys[1], (20, widths[-1]))
flow = gf.GradientFlow(gf.Problem(gf.Dataset(x, y), gf.losses.squared))
net = gf.nets.MLP(widths, key=keys[2])
begin = time.perf_counter()
jax.block_until_ready(gf.solve(flow, net, t1=1.0))
print(time.perf_counter() - begin)
"""


@dataclass(frozen=True)
class Settings:
    """What is run.

    Attributes:
        widths: of the networks that are solved.
        repeats: of each process that finds its programs.
        out: where the report goes.
        smoke: a trial: one network, no afternoon.
    """

    widths: tuple[str, ...] = ("3-16-1", "3-16-16-1", "3-16-16-16-1")
    repeats: int = 3
    out: Path = Path(__file__).parent
    smoke: bool = False


def process(code: str, *arguments: str) -> tuple[float, float]:
    """The seconds of a whole process, and those that it prints."""
    begin = time.perf_counter()
    command = [sys.executable, "-c", code, *arguments]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    return time.perf_counter() - begin, float(ran.stdout)


def processes(widths: str, repeats: int) -> dict[str, Any]:
    """The first and the second process that solve for a network."""
    with tempfile.TemporaryDirectory() as cache:
        first = process(_SOLVE, cache, widths)
        second = min(process(_SOLVE, cache, widths) for _ in range(repeats))
    of = ("process", "solve")
    return {
        "widths": widths,
        "first": dict(zip(of, first, strict=True)),
        "second": dict(zip(of, second, strict=True)),
    }


def sections() -> list[tuple[str, float, str]]:
    """The title of each section of the page, the seconds that it promises, its code."""
    before, *parts = PAGE.read_text("utf-8").split("\n## ")
    code = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    opening = "".join(code.findall(before))
    found = []
    for part in parts:
        promise = _PROMISE.search(part)
        assert promise, f"{part.splitlines()[0]}: no promise"
        text = opening + "".join(code.findall(part))
        found.append((part.splitlines()[0], float(promise[1]), text))
        opening = ""
    return found


def afternoon() -> list[dict[str, Any]]:
    """The sections one after the other, as each uses what the ones before have defined."""
    names: dict[str, Any] = {}
    rows = []
    for title, promised, text in sections():
        test = doctest.DocTestParser().get_doctest(text, names, title, str(PAGE), 0)
        begin = time.perf_counter()
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        failed, _ = runner.run(test, clear_globs=False)
        seconds = time.perf_counter() - begin
        names.update(test.globs)
        if failed:
            raise RuntimeError(f"{title}: its examples fail")
        rows.append({"section": title, "seconds": seconds, "promised": promised})
        print(rows[-1], flush=True)
    return rows


def main(settings: Settings) -> None:
    """Measure and write the report."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    widths = settings.widths[:1] if settings.smoke else settings.widths
    repeats = 1 if settings.smoke else settings.repeats
    report: dict[str, Any] = {
        "import": min(process(_IMPORT)[1] for _ in range(repeats)),
        "processes": [processes(each, repeats) for each in widths],
    }
    print(json.dumps(report, indent=1), flush=True)
    report["afternoon"] = [] if settings.smoke else afternoon()
    write_report(settings.out / "first_day.json", PACKAGES, **report)


if __name__ == "__main__":
    main(tyro.cli(Settings))
