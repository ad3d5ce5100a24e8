"""Specs as TOML and JSON files."""

import dataclasses
import json
import math
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from ..._atomic import replace_atomically
from ._axes import expand
from ._fields import as_kind, check_names, plain, require, suggestion, type_hints
from ._settings import (
    DescentSettings,
    EscapeSettings,
    FlowSettings,
    NetSettings,
    ProblemSettings,
    SolverSettings,
)
from ._spec import EngineSettings, Spec


# What a run is, by the name it has in a file: those of the commands.
RUNS = {"escape": EscapeSettings, "flow": FlowSettings, "descend": DescentSettings}
_SECTIONS = {
    "problem": ProblemSettings,
    "net": NetSettings,
    "solver": SolverSettings,
    "engine": EngineSettings,
}


def read_spec(path: str | os.PathLike) -> Spec:
    """The spec in a TOML or JSON file.

    Args:
        path: the file; JSON if its name ends in .json.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if it is no TOML or JSON, and as `Spec` does.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; give the TOML file of a sweep.")
    try:
        return parse_spec(path.read_text("utf-8"), path.suffix == ".json")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    except RecursionError as error:
        raise ValueError(f"{path}: tables or lists are nested too deeply.") from error


def parse_spec(text: str, is_json: bool = False) -> Spec:
    """The spec that a text describes.

    Args:
        text: what a file of it holds.
        is_json: whether that is JSON, rather than TOML.

    Raises:
        ValueError: if it is none.
    """
    return as_spec(json.loads(text) if is_json else tomllib.loads(text))


def write_spec(spec: Spec, path: str | os.PathLike) -> None:
    """Write a spec to a file.

    Args:
        spec: what is written.
        path: the file, replaced if it is there; JSON if its name ends in .json, else TOML.
    """
    text = format_spec(spec, Path(path).suffix == ".json")
    replace_atomically(path, lambda temporary: temporary.write_text(text, "utf-8"))


def format_spec(spec: Spec, as_json: bool = False) -> str:
    """The text that describes a spec.

    Args:
        spec: what is described.
        as_json: in JSON, rather than in TOML.
    """
    table = as_table(spec)
    if as_json:
        return json.dumps(_strict(table), indent=2, allow_nan=False) + "\n"
    return tomli_w.dumps(table)


def as_table(spec: Spec) -> dict[str, Any]:
    """The spec as nested tables of numbers, texts and lists."""
    table = plain(spec)
    kind = next(name for name, cls in RUNS.items() if isinstance(spec.run, cls))
    table["run"] = {"kind": kind, **table["run"]}
    # In TOML plain entries come before tables.
    return dict(sorted(table.items(), key=lambda entry: isinstance(entry[1], dict)))


def as_spec(table: Mapping[str, Any]) -> Spec:
    """The spec that a table describes.

    Raises:
        ValueError: on names that are not known, and as `Spec` does.
    """
    check_names(table, [field.name for field in dataclasses.fields(Spec)], "")
    parts: dict[str, Any] = {}
    for name, value in table.items():
        if name in _SECTIONS:
            parts[name] = _section(_SECTIONS[name], value, name)
        elif name == "run":
            parts[name] = _run(value)
        elif name == "axes":
            parts[name] = {key: expand(key, each) for key, each in _flat(value).items()}
        else:
            parts[name] = as_kind(type_hints(Spec)[name], value, name)
    return Spec(**parts)


def _run(table: Any) -> Any:
    _check_table(table, "run")
    rest = dict(table)
    kind = rest.pop("kind", "escape")
    if kind not in RUNS:
        raise ValueError(f"run.kind={kind!r}{suggestion(kind, RUNS)}")
    return _section(RUNS[kind], rest, "run")


def _section(cls: type, table: Any, name: str) -> Any:
    _check_table(table, name)
    check_names(table, [field.name for field in dataclasses.fields(cls)], name)
    hints = type_hints(cls)
    return cls(
        **{
            field: as_kind(hints[field], value, f"{name}.{field}")
            for field, value in table.items()
        }
    )


def _flat(axes: Any) -> dict[str, Any]:
    """Axes by dotted names: TOML reads `net.depth = …` as a table in a table."""
    _check_table(axes, "axes")
    found = {}
    for name, written in axes.items():
        if "." in name or not isinstance(written, Mapping):
            found[name] = written
        else:
            found |= {f"{name}.{field}": values for field, values in written.items()}
    return found


def _check_table(table: Any, name: str) -> None:
    require(isinstance(table, Mapping), name, table, f"must be a table, as [{name}].")


def _strict(value: Any) -> Any:
    """As strict JSON holds it: infinity by name."""
    if isinstance(value, dict):
        return {name: _strict(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_strict(entry) for entry in value]
    if isinstance(value, float) and math.isinf(value):
        return str(value)
    return value
