"""The shape of the package: import order, import-time effects, classes, docstrings."""

import ast
import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gfdyn as gf


ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "gfdyn"
FILES = sorted(PACKAGE.rglob("*.py"))

# A room imports only rooms that stand before it here. Modules outside of rooms are rooms of
# their own.
ROOMS = (
    "_cache",
    "_tracing",
    "_types",
    "_numerics",
    "_program_limit",
    "_numbers",
    "_keys",
    "_trees",
    "_by_layer",
    "_lanczos",
    "_progress",
    "_keywords",
    "_atomic",
    "_netcdf",
    "nets",
    "data",
    "losses",
    "problem",
    "_site_motion",
    "_trained_edges",
    "flows",
    "kinks",
    "solvers",
    "stopping",
    "run",
    "descent",
    "diagnostics",
    "escape._rewrite",
    "escape.exact",
    "escape.search",
    "escape.episodes",
    "escape",
    "theory._check",
    "theory.bantzis",
    "theory.galanti",
    "theory.le_jegelka",
    "theory.timor",
    "theory",
    "sweeps.spec",
    "sweeps.results",
    "sweeps.run",
    "sweeps",
    "plotting",
    "cli",
)
# Diagnostics measure a net on a problem, and know of nothing else.
BEHIND_DIAGNOSTICS = {
    "_by_layer",
    "_lanczos",
    "_numerics",
    "_site_motion",
    "_trained_edges",
    "_types",
    "nets",
    "problem",
}
# Imports inside functions, (module, what): packages that not every run needs, and that
# together take longer to import than all the rest.
LATE_IMPORTS = {
    ("descent._descend", "optax"),
    ("run._labelling", "xarray"),
    ("_progress", "tqdm"),
    ("descent._sgd", "optax"),
    ("run._files", "xarray"),
    ("_netcdf", "h5netcdf"),
    ("_netcdf", "xarray.backends"),
    ("escape.exact._column_generation", "scipy.optimize"),
    ("escape.search._search_folder", "xarray"),
    ("sweeps.results._collect", "xarray"),
    ("cli._sweep", "xarray"),
    ("plotting._axes", "matplotlib.ticker"),
    ("plotting._measurements", "xarray"),
    ("plotting._overview", "matplotlib.figure"),
    ("plotting._style", "matplotlib"),
    ("sweeps.run._cluster", "distributed"),
    ("sweeps.run._cluster", "distributed.comm.core"),
    ("sweeps.results._first_escape", "xarray"),
    ("sweeps.results._store", "xarray"),
    ("theory.galanti._sde", "lineax"),
    ("theory.le_jegelka._counterexample", "scipy.optimize"),
    ("theory.le_jegelka._counterexample", "scipy.special"),
    ("theory.le_jegelka._edges", "scipy.sparse"),
    ("theory.le_jegelka._edges", "scipy.sparse.csgraph"),
    ("theory.timor._kkt", "scipy.optimize"),
    ("theory.timor._lagrangian", "optax"),
    ("theory.timor._polish", "scipy.optimize"),
}


def name_of(path: Path) -> str:
    """The module of a file, without the package's own name: `nets._mlp`; "" for gfdyn."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


TREES = {name_of(path): ast.parse(path.read_text("utf-8")) for path in FILES}
PACKAGES = {name_of(path) for path in FILES if path.name == "__init__.py"}
MODULES = sorted(TREES)


def imports(module: str, tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """The absolute names of what is imported: modules, or names out of them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                here = ["gfdyn", *module.split(".")] if module else ["gfdyn"]
                up = node.level - (module in PACKAGES)
                base = ".".join([*here[: len(here) - up], *filter(None, [node.module])])
            yield from ((node, f"{base}.{alias.name}") for alias in node.names)


def own_imports(module: str) -> set[str]:
    """The modules of the package that a module imports."""
    found = set()
    for _, target in imports(module, TREES[module]):
        if target.split(".")[0] == "gfdyn":
            inner = target.removeprefix("gfdyn").removeprefix(".")
            while inner and inner not in TREES:
                inner = inner.rpartition(".")[0]
            found.add(inner)
    return found


def room_of(module: str) -> str:
    """The innermost room that a module is in, or is."""
    while module not in ROOMS:
        module = module.rpartition(".")[0]
    return module


def test_every_module_is_in_a_room():
    assert set(ROOMS) <= set(TREES)
    outside = {m for m in MODULES if m and not any(_is_in(m, room) for room in ROOMS)}
    assert not outside, "give new rooms a place in ROOMS"


def _is_in(module: str, room: str) -> bool:
    return f"{module}.".startswith(f"{room}.")


@pytest.mark.parametrize("module", [module for module in MODULES if module])
def test_imports_point_one_way(module):
    """From a room to those before it, by what these offer and not by their own modules."""
    own = room_of(module)
    for target in own_imports(module):
        room = room_of(target)
        if room != own:
            assert ROOMS.index(room) < ROOMS.index(own), target
            around = room.rpartition(".")[0]
            private = target != room or (
                room.rpartition(".")[2].startswith("_") and not _is_in(own, around or own)
            )
            assert not private, f"{target} is the room's own"


@pytest.mark.parametrize("room", ROOMS)
def test_modules_of_a_room_import_each_other_one_way(room):
    inside = {m: own_imports(m) for m in MODULES if m and room_of(m) == room}
    left = set(inside)
    while ready := {m for m in left if not (inside[m] & left) - {m}}:
        left -= ready
    assert not left, "these import each other in a circle"


def test_diagnostics_know_only_problem_and_net():
    for module in MODULES:
        if module.startswith("diagnostics."):
            others = {m for m in own_imports(module) if room_of(m) != "diagnostics"}
            assert others <= BEHIND_DIAGNOSTICS, module


def test_plotting_draws_any_dataset():
    """The functions of axes and datasets know nothing but how figures look."""
    look = {f"plotting.{name}" for name in ("_axes", "_annotated", "_labels", "_style")}
    for module in (*look, "plotting._trajectory"):
        assert own_imports(module) <= look, module


def test_only_the_command_imports_the_command():
    for module in MODULES:
        if room_of(module or "_cache") != "cli":
            assert not any(_is_in(m, "cli") for m in own_imports(module)), module


def test_nothing_but_the_command_draws():
    """Nor does the command's report look behind the public names."""
    for module in MODULES:
        if module and not module.startswith("plotting"):
            drawing = {name for name in own_imports(module) if name.startswith("plotting")}
            assert drawing <= ({"plotting"} if module == "cli._report" else set()), module


def test_late_imports_are_listed():
    late = set()
    for module, tree in TREES.items():
        functions = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        ]
        for function in functions:
            for _, target in imports(module, function):
                late.add((module, target.rpartition(".")[0] or target))
    assert late == LATE_IMPORTS


@pytest.mark.parametrize("module", MODULES)
def test_no_star_imports(module):
    assert not any(target.endswith(".*") for _, target in imports(module, TREES[module]))


@pytest.mark.parametrize("module", MODULES)
def test_nothing_global_is_touched(module):
    """No settings of jax but by the command and where they are asked for, no pyplot, no
    pickle."""
    tree = TREES[module]
    targets = {target for _, target in imports(module, tree)}
    attributes = {
        ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)
    }
    everything = targets | attributes
    for word in ("pyplot", "pickle", "cloudpickle", "dill", "joblib", "environ", "global"):
        assert not any(word in name.split(".") for name in everything), word
    if module not in ("_cache", "cli._main", "sweeps.run._worker"):
        assert not any(name.startswith("jax.config") for name in everything)
    assert not any(isinstance(node, ast.Global | ast.Nonlocal) for node in ast.walk(tree))


MUTABLE = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
MAKERS = {"list", "dict", "set", "defaultdict", "deque", "Counter", "OrderedDict"}


def is_mutable(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        return ast.unparse(value.func).rpartition(".")[2] in MAKERS
    return isinstance(value, MUTABLE)


@pytest.mark.parametrize("module", MODULES)
def test_no_mutable_state_in_modules(module):
    """Containers at module or class level are constants, named in capitals."""
    scopes = [TREES[module], *(c for c in ast.walk(TREES[module]) if is_class(c))]
    for scope in scopes:
        for node in scope.body:  # pyright: ignore[reportAttributeAccessIssue]
            if isinstance(node, ast.Assign | ast.AnnAssign) and is_mutable(node.value):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    name = ast.unparse(target)
                    assert re.fullmatch(r"_?[A-Z][A-Z0-9_]*", name), name


def is_class(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef)


CLASSES = {
    node.name: node
    for tree in TREES.values()
    for node in ast.walk(tree)
    if isinstance(node, ast.ClassDef)
}


def bases(name: str) -> list[str]:
    """The bases as they are written, without the modules of the package before them."""
    written = [ast.unparse(base).split(".") for base in CLASSES[name].bases]
    return [".".join(part for part in base if part not in TREES) for base in written]


def own_ancestors(name: str) -> set[str]:
    direct = {base for base in bases(name) if base in CLASSES}
    return direct.union(*(own_ancestors(base) for base in direct))


def is_module(name: str) -> bool:
    return any("eqx.Module" in bases(each) for each in {name} | own_ancestors(name))


def members(name: str) -> dict[str, bool]:
    """Each member of a class body, and whether it is abstract."""
    found = {}
    for node in CLASSES[name].body:
        if isinstance(node, ast.FunctionDef):
            decorators = {ast.unparse(d) for d in node.decorator_list}
            found[node.name] = "abc.abstractmethod" in decorators
        elif isinstance(node, ast.AnnAssign):
            annotation = ast.unparse(node.annotation)
            found[ast.unparse(node.target)] = annotation.startswith("eqx.Abstract")
    return found


EQUINOX = sorted(name for name in CLASSES if is_module(name))


def test_class_names_are_unique():
    """Files name classes, and so does the table above."""
    count = sum(is_class(node) for tree in TREES.values() for node in ast.walk(tree))
    assert count == len(CLASSES)
    assert {"Trajectory", "MLP", "EscapeFlow", "Problem", "Polar"} <= set(EQUINOX)


@pytest.mark.parametrize("name", EQUINOX)
def test_classes_are_abstract_or_final(name):
    heirs = [other for other in CLASSES if name in bases(other)]
    if name.startswith("Abstract"):
        assert any(members(name).values()), f"{name} has no abstract member"
        assert heirs, f"{name} is never implemented"
    else:
        assert not heirs, f"{name} is subclassed by {heirs}"
        assert not any(members(name).values()), f"{name} has abstract members"


@pytest.mark.parametrize("name", EQUINOX)
def test_concrete_members_are_not_overridden(name):
    for ancestor in own_ancestors(name):
        concrete = {m for m, abstract in members(ancestor).items() if not abstract}
        assert not concrete & set(members(name)), f"{name} overrides {ancestor}'s"


def test_no_super_calls():
    """But in exceptions, which are not ours to design."""
    for name, node in CLASSES.items():
        if name in EQUINOX:
            assert not any(
                isinstance(call, ast.Call) and ast.unparse(call.func) == "super"
                for call in ast.walk(node)
            ), name


def documented() -> Iterator[tuple[str, Any]]:
    """Modules, and what they hold of public classes, functions and methods."""
    for module, tree in TREES.items():
        yield f"gfdyn.{module}".rstrip("."), tree
        scopes: list[tuple[str, Any]] = [(module, tree)]
        while scopes:
            prefix, scope = scopes.pop()
            for node in scope.body:
                if not isinstance(node, ast.FunctionDef | ast.ClassDef):
                    continue
                if node.name.startswith("_"):
                    continue
                yield f"{prefix}.{node.name}", node
                if isinstance(node, ast.ClassDef):
                    scopes.append((f"{prefix}.{node.name}", node))


DOCUMENTED = dict(documented())


@pytest.mark.parametrize("name", sorted(DOCUMENTED))
def test_docstrings(name):
    """Each says in its first paragraph, of three lines at most, what it is about."""
    docstring = ast.get_docstring(DOCUMENTED[name])
    assert docstring, f"{name} has no docstring"
    summary = docstring.split("\n\n")[0]
    assert len(summary.splitlines()) <= 3, f"{name}: {summary!r}"
    assert summary.rstrip().endswith((".", ":")), f"{name}: {summary!r}"


def test_version_stands_in_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert gf.__version__ == project["version"]
    for module, tree in TREES.items():
        assigned = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and "version" in ast.unparse(node.targets[0])
        ]
        for node in assigned:
            assert not isinstance(node.value, ast.Constant), module


def test_package_is_typed():
    assert (PACKAGE / "py.typed").is_file()


def test_public_names_are_reexported_plainly():
    """`X as X`, and no logic, in every `__init__`."""
    for module in PACKAGES:
        for node in TREES[module].body:
            if isinstance(node, ast.ImportFrom) and node.level:
                assert all(alias.asname == alias.name for alias in node.names), module
            elif module:
                assert isinstance(node, ast.Expr), ast.unparse(node)


WATCH = """
import json, sys
import diffrax, equinox, jax, jaxtyping, matplotlib, optax, tqdm.auto, xarray
before = dict(jax.config.values)
import {modules}
after = dict(jax.config.values)
print(json.dumps({{
    "changed": [name for name in before if before[name] != after.get(name)],
    "loaded": [name for name in {suspects!r} if name in sys.modules],
}}))
"""


@pytest.mark.parametrize("modules", ["gfdyn", "gfdyn.cli"])
def test_import_has_no_effects(modules):
    """Settings stay, pyplot and scikit-learn are not loaded, no backend is started: to do
    so would raise, there is none of that name."""
    suspects = ["matplotlib.pyplot", "sklearn"]
    result = subprocess.run(
        [sys.executable, "-c", WATCH.format(modules=modules, suspects=suspects)],
        env=os.environ | {"JAX_PLATFORMS": "no_such_platform"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {"changed": [], "loaded": []}


NOT_AT_IMPORT = {
    "dask",
    "distributed",
    "h5netcdf",
    "h5py",
    "matplotlib",
    "optax",
    "pandas",
    "scipy",
    "sklearn",
    "tqdm",
    "tyro",
    "xarray",
}


def test_import_loads_only_what_every_run_needs():
    code = "import sys, gfdyn; print(*{name.partition('.')[0] for name in sys.modules})"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    loaded = set(result.stdout.split())
    assert {"gfdyn", "jax", "diffrax", "equinox"} <= loaded
    assert not loaded & NOT_AT_IMPORT


def test_a_backend_of_no_name_would_be_noticed():
    result = subprocess.run(
        [sys.executable, "-c", "import jax; jax.numpy.zeros(())"],
        env=os.environ | {"JAX_PLATFORMS": "no_such_platform"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode != 0 and "no_such_platform" in result.stderr


def test_every_module_can_be_imported():
    for module in MODULES:
        importlib.import_module(f"gfdyn.{module}".rstrip("."))
