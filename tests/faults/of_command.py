"""Faults of the command: arguments, specs and folders of sweeps that are none, drawn by
hypothesis.
"""

import contextlib
import functools
import io
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import jax
import numpy as np
import tomli_w
from hypothesis import strategies as st
from table import Attempt, Outcome, Row

from gfdyn import cli


# Seconds that no refusal takes, nor a run of that size.
TINY = {
    "--data": "circle",
    "--depth": "2",
    "--width": "2",
    "--samples": "4",
    "--max-saves": "4",
    "--init-scale": "1.0",
}
RUNS = {
    "flow": {**TINY, "--t1": "0.01", "--max-steps": "20"},
    "escape": {**TINY, "--tau-max": "0.01", "--max-steps": "20"},
    "descend": {**TINY, "--steps": "2"},
}
# Of the size of a network or a run, none that a machine would try to build.
HUGE = ("1000000000000000", str(10**30))
OPTIONS: dict[str, tuple[str, ...]] = {
    "--data": ("cifar", "", "mnist"),
    "--loss": ("logistic", "hinge", "cross_entropy"),
    "--depth": HUGE,
    "--width": HUGE,
    "--samples": ("all", "7", *HUGE),
    "--activation": ("tanh", "leaky_relu(2", "leaky_relu()", "leaky_relu(nan)"),
    "--init-scale": ("1e999",),
    "--seed": HUGE,
    "--dtype": ("float16",),
    "--max-saves": HUGE,
    "--path": ("/no/such/file", "."),
}
OF_RUNS: dict[str, dict[str, tuple[str, ...]]] = {
    "flow": {
        **OPTIONS,
        "--t1": ("inf", "1e999"),
        "--clock": ("sun",),
        "--rtol": ("1e-999", "inf"),
        "--solver": ("euler",),
        "--max-steps": HUGE,
        "--weight-decay": ("inf", "1e999"),
        "--risk-below": ("nan",),
    },
    "escape": {
        **OPTIONS,
        "--rtol": ("1e-999", "inf"),
        "--settled": ("2", "inf"),
        "--tau-max": ("-inf",),
        "--max-steps": HUGE,
    },
    "descend": {
        **OPTIONS,
        "--learning-rate": ("inf", "1e999"),
        "--steps": HUGE[1:],
        "--batch-size": HUGE,
        "--weight-decay": ("inf", "1e999"),
    },
}
WRONG = ("0", "-1", "nan", "word", "", "1.5", "None", "--", "1e", "½", "true", "[1]", "\n")


# Arguments


@st.composite
def options(draw: st.DrawFn) -> list[str]:
    """A run of tiny size, of which one option or more are others, or are none."""
    command = draw(st.sampled_from(sorted(RUNS)))
    given = dict(RUNS[command])
    names = st.sampled_from(sorted(OF_RUNS[command]))
    for name in draw(st.lists(names, min_size=1, max_size=draw(st.integers(1, 3)))):
        values = st.sampled_from(OF_RUNS[command][name] + WRONG)
        given[name] = draw(values | st.text(max_size=6))
    if draw(st.integers(0, 9)) == 9:
        given[f"--{draw(st.text(min_size=1, max_size=8))}"] = draw(st.text(max_size=3))
    return [command, *(word for pair in given.items() for word in pair)]


words = st.lists(
    st.sampled_from(["Flow", "sweep", "run", "status", "report", "--out", "--t1", "1"])
    | st.text(max_size=8),
    max_size=4,
).filter(lambda argv: not {"-h", "flow", "escape", "descend"} & set(argv))


# Specs

SPEC: dict[str, Any] = {
    "name": "tiny",
    "run": {"kind": "descend", "steps": 2},
    "net": {"width": 2, "depth": 2},
    "problem": {"data": "teacher", "samples": 4, "teacher": [2, 2, 1]},
    "solver": {"name": "exact", "rtol": 1e-3},
    "engine": {"name": "serial", "lanes": 1},
    "axes": {"net.seed": [0, 1], "net.init_scale": {"log": [1.0, 0.1], "num": 2}},
    "zip": [["net.seed", "net.init_scale"]],
    "records": ["risk"],
    "max_saves": 4,
    "weights": "none",
    "dtype": "float64",
}
plain = (
    st.integers(-(2**63), 2**63 - 1)
    | st.sampled_from([10**9, 10**15])
    | st.floats()
    | st.booleans()
    | st.text(max_size=5)
    | st.dates()
)
values = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["log", "num", "seeds", "linear"]) | st.text(max_size=4),
            inner,
            max_size=3,
        )
    ),
    max_leaves=4,
)


@st.composite
def specs(draw: st.DrawFn) -> tuple[bytes, str]:
    """The bytes of a file and how its name ends."""
    table = json.loads(json.dumps(SPEC))
    for _ in range(draw(st.integers(1, 3))):
        inner = table
        if draw(st.booleans()):
            sections = [name for name, each in table.items() if isinstance(each, dict)]
            if sections:
                inner = table[draw(st.sampled_from(sorted(sections)))]
        known = sorted(inner) or ["x"]
        name = draw(st.sampled_from(known) | st.text(max_size=6))
        inner[name] = draw(values)
    form = draw(st.sampled_from(["toml", "json", "torn", "bytes", "deep"]))
    if form == "json":
        return json.dumps(table, default=str).encode(), ".json"
    text = tomli_w.dumps(table).encode()
    if form == "torn":
        return text[: draw(st.integers(0, len(text)))], ".toml"
    if form == "bytes":
        return draw(st.binary(max_size=40)), draw(st.sampled_from([".toml", ".json"]))
    if form == "deep":
        depth = draw(st.sampled_from([3, 100, 100_000]))
        return b"x = " + b"[" * depth, ".toml"
    return text, ".toml"


# What comes of them


@contextlib.contextmanager
def as_before() -> Iterator[None]:
    """The settings of jax, which the command changes, are as they were after it."""
    names = (
        "jax_enable_x64",
        "jax_compilation_cache_dir",
        "jax_persistent_cache_min_compile_time_secs",
        "jax_persistent_cache_min_entry_size_bytes",
    )
    before = {name: getattr(jax.config, name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def answered(arguments: list[str]) -> Outcome:
    """What comes of a command: a status of 0 or 1 if it runs, one line and 2 if not."""
    out, said = io.StringIO(), io.StringIO()
    with as_before(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
                status = cli.main(arguments)
        except SystemExit as end:
            status = end.code
        except Exception:
            return Outcome.BARE
    if status == 2:
        text = said.getvalue()
        lines = [line for line in text.splitlines() if not _is_news(line)]
        good = len(lines) == 1 and lines[0].startswith("gfdyn: ") and len(lines[0]) > 12
        return Outcome.NAMED if good else Outcome.BARE
    return Outcome.HARMLESS if status in (0, 1, 3) else Outcome.BARE


def _is_news(line: str) -> bool:
    """Whether it tells of work that goes on."""
    return line.startswith("gfdyn: compiling")


def drawn(strategy: st.SearchStrategy, number: int) -> list[Any]:
    """So many examples, the same in every run."""
    found: list[Any] = []

    @hypothesis.seed(0)
    @hypothesis.settings(
        max_examples=number,
        database=None,
        deadline=None,
        phases=(hypothesis.Phase.generate,),
        suppress_health_check=(
            hypothesis.HealthCheck.too_slow,
            hypothesis.HealthCheck.filter_too_much,
            hypothesis.HealthCheck.data_too_large,
        ),
    )
    @hypothesis.given(strategy)
    def collect(example: Any) -> None:
        found.append(example)

    collect()
    return found


def commands(kind: str) -> st.SearchStrategy:
    """What is drawn of each kind."""
    return {"options": options(), "words": words, "specs": specs(), "files": files()}[kind]


@functools.cache
def examples(kind: str, number: int) -> list[Any]:
    """All of a kind."""
    return drawn(commands(kind), number)


def of_options(argv: list[str], folder: Path) -> Outcome:
    return answered([*argv, "--out", str(folder / "out")])


def of_words(argv: list[str], folder: Path) -> Outcome:
    with contextlib.chdir(folder):
        return answered(argv)


def of_spec(spec: tuple[bytes, str], folder: Path) -> Outcome:
    """Read, and refused at the latest for an option that fits no such sweep."""
    content, suffix = spec
    file = folder / f"spec{suffix}"
    file.write_bytes(content)
    outcome = answered(["sweep", str(file), "--out", str(folder / "out"), "--wait", "5"])
    return Outcome.SILENT if outcome is Outcome.HARMLESS else outcome


# The folder of a sweep


@st.composite
def files(draw: st.DrawFn) -> tuple[str, dict[str, bytes]]:
    """A command on a folder, and the files there."""
    command = draw(st.sampled_from(["status", "collect", "report"]))
    texts = st.binary(max_size=30) | st.sampled_from(
        [b"", b"{}", b"[]", b"null", b'{"versions": 3}', b'{"versions": {"jax": []}}']
        + [b'{"before": 3, "versions": {"gfdyn": 1, "jax": 2, "jaxlib": 3}}']
        + [b'{"reason": 3}', b'"text"', b"\xff\xfe"]
    )
    spec = draw(st.sampled_from([tomli_w.dumps(SPEC).encode(), None]) | texts)
    found = {} if spec is None else {"spec.toml": spec}
    names = ["manifest.json", "points/x.nc", "failures/x.json", "log.txt", "report.html"]
    for name in draw(st.lists(st.sampled_from(names), unique=True)):
        found[name] = draw(texts)
    return command, found


def of_files(case: tuple[str, dict[str, bytes]], folder: Path) -> Outcome:
    command, contents = case
    out = folder / "out"
    for name, content in contents.items():
        file = out / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    argv = ["report"] if command == "report" else ["sweep", command]
    return answered([*argv, str(out)])


def _attempts(
    kind: str, answer: Callable[..., Outcome], number: int
) -> tuple[Attempt, ...]:
    def attempt(i: int, random: np.random.Generator, folder: Path) -> Outcome:
        return answer(examples(kind, number)[i % len(examples(kind, number))], folder)

    return tuple(functools.partial(attempt, i) for i in range(number))


def _row(fault: str, kind: str, answer: Callable[..., Outcome], number: int) -> Row:
    attempts = _attempts(kind, answer, number)
    return Row("command", fault, _ONE_LINE, attempts, trials=number, sample=8)


_ONE_LINE = "one line that says why, and the exit status 2; or it runs"

ROWS: tuple[Row, ...] = (
    _row("options that are wrong", "options", of_options, 200),
    _row("words that are no command", "words", of_words, 50),
    _row("a spec that is none, or torn", "specs", of_spec, 200),
    _row("a folder that is no sweep, or of which files are torn", "files", of_files, 100),
)
