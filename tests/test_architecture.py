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


ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gfdyn"
FILES = sorted(PACKAGE.rglob("*.py"))

# A module imports only modules that stand before it here.
ORDER = (
    "_cache",
    "_tracing",
    "_room",
    "_numbers",
    "_lanczos",
    "_progress",
    "_keywords",
    "nets._activation",
    "nets._invariant",
    "nets._base",
    "nets._weight_mask",
    "nets._initialisation",
    "nets._mlp",
    "nets._weight_normalised",
    "nets._connections",
    "nets._composed",
    "nets._batch_norm",
    "nets._layered",
    "nets._blocks",
    "nets._statistics",
    "nets._architectures",
    "nets._dag",
    "nets._as_dag",
    "nets._stack",
    "nets._from_equinox",
    "nets._from_torch",
    "nets._foreign",
    "nets._wrapped",
    "nets._rescaled",
    "nets._coincidence",
    "nets._joined_samples",
    "nets",
    "data._checks",
    "data._precision",
    "data._dataset",
    "data._idx",
    "data._images",
    "data._synthetic",
    "data",
    "losses._standard",
    "losses._from_function",
    "losses._weighted",
    "losses",
    "_problem",
    "flows._base",
    "flows._escape",
    "flows._unconstrained",
    "flows._parameters",
    "flows._gradient",
    "flows._momentum",
    "flows._sign",
    "flows",
    "kinks._sites",
    "kinks._shared",
    "kinks._tangent",
    "kinks._play",
    "kinks._in_range",
    "kinks._letting_go",
    "kinks._regime",
    "kinks._multipliers",
    "kinks._sliding",
    "kinks",
    "solvers._base",
    "solvers._adaptive",
    "solvers._chebyshev",
    "solvers._dense_output",
    "solvers._stiffness",
    "solvers._sign_mode",
    "solvers._sign_limits",
    "solvers._sign_switches",
    "solvers._runge_kutta",
    "solvers._legs",
    "solvers._first_time",
    "solvers._span",
    "solvers._settle",
    "solvers._correction",
    "solvers._localisation",
    "solvers._located",
    "solvers._at_kinks",
    "solvers._stabilised",
    "solvers._exact_kinks",
    "solvers",
    "stopping",
    "_results",
    "_time",
    "_certificate",
    "_compiling",
    "_saving",
    "_kinks",
    "_lanes",
    "_task",
    "_stops",
    "_begin",
    "_integrate",
    "_labelling",
    "_rates",
    "_sampling",
    "_sgd",
    "_serialise",
    "_schema",
    "_atomic",
    "_netcdf",
    "_files",
    "_summary",
    "_trajectory",
    "_load",
    "_continuation",
    "_solve",
    "_descent",
    "_distance",
    "diagnostics._balance",
    "diagnostics._clarke",
    "diagnostics._classification",
    "diagnostics._energy",
    "diagnostics._escape",
    "diagnostics._features",
    "diagnostics._invariants",
    "diagnostics._norm_ratio",
    "diagnostics._smoothed_margin",
    "diagnostics._spectra",
    "diagnostics._ranks",
    "diagnostics._tangent_kernel",
    "diagnostics._training",
    "diagnostics",
    "escape._growth",
    "escape._rewrite",
    "escape._bounds",
    "escape._direction",
    "escape._closed_forms",
    "escape._examples",
    "escape._hessian",
    "escape._linear",
    "escape._planar",
    "escape._column_generation",
    "escape._programs",
    "escape._residual",
    "escape._projected_descent",
    "escape._convergence",
    "escape._clusters",
    "escape._directions",
    "escape._search_folder",
    "escape._search",
    "escape._onset",
    "escape._segmentation",
    "escape._plateaus",
    "escape._episodes",
    "escape._aligned",
    "escape",
    "theory._check",
    "theory.bantzis._quantities",
    "theory.bantzis._products",
    "theory.bantzis._rank_one",
    "theory.bantzis._near_rank_one",
    "theory.bantzis._escape",
    "theory.bantzis",
    "theory.galanti._quantities",
    "theory.galanti._batches",
    "theory.galanti._jacobians",
    "theory.galanti._stationarity",
    "theory.galanti._collinear",
    "theory.galanti._low_rank",
    "theory.galanti._normalised",
    "theory.galanti._memory",
    "theory.galanti._laws",
    "theory.galanti._sample_bound",
    "theory.galanti._sde",
    "theory.galanti._switched",
    "theory.galanti",
    "theory.le_jegelka._version",
    "theory.le_jegelka._tail",
    "theory.le_jegelka._low_rank",
    "theory.le_jegelka._flattenings",
    "theory.le_jegelka._descent_slack",
    "theory.le_jegelka._graph",
    "theory.le_jegelka._path_tree",
    "theory.le_jegelka._decomposition",
    "theory.le_jegelka._jagged",
    "theory.le_jegelka._subdifferentials",
    "theory.le_jegelka._patterns",
    "theory.le_jegelka._invariances",
    "theory.le_jegelka._drifts",
    "theory.le_jegelka._edges",
    "theory.le_jegelka._noninvariance",
    "theory.le_jegelka._singular_values",
    "theory.le_jegelka._regimes",
    "theory.le_jegelka._counterexample",
    "theory.le_jegelka",
    "theory.timor._setting",
    "theory.timor._closed_forms",
    "theory.timor._bounds",
    "theory.timor._cones",
    "theory.timor._type_probabilities",
    "theory.timor._constructions",
    "theory.timor._limits",
    "theory.timor._along_the_flow",
    "theory.timor._cone_log",
    "theory.timor._ensemble",
    "theory.timor._programs",
    "theory.timor._witness",
    "theory.timor._certificates",
    "theory.timor._deep",
    "theory.timor._kkt",
    "theory.timor._lagrangian",
    "theory.timor._polish",
    "theory.timor._minimum_norm",
    "theory.timor",
    "theory",
    "sweeps._fields",
    "sweeps._settings",
    "sweeps._axes",
    "sweeps._spec",
    "sweeps._toml",
    "sweeps._plan",
    "sweeps._store",
    "sweeps._memory",
    "sweeps._build",
    "sweeps._lanes",
    "sweeps._flow_runs",
    "sweeps._descent_runs",
    "sweeps._compute",
    "sweeps._manifest",
    "sweeps._worker",
    "sweeps._cluster",
    "sweeps._engines",
    "sweeps._queue",
    "sweeps._claim",
    "sweeps._collect",
    "sweeps._first_escape",
    "sweeps._page",
    "sweeps._run",
    "sweeps._commands",
    "sweeps",
    "plotting._annotated",
    "plotting._style",
    "plotting._axes",
    "plotting._labels",
    "plotting._trajectory",
    "plotting._caption",
    "plotting._measurements",
    "plotting._overview",
    "plotting",
    "_report",
    "_usage",
    "cli",
)
# Diagnostics measure a net on a problem, and know of nothing else.
BEHIND_DIAGNOSTICS = {"_lanczos", "_problem", "nets"}
# Imports inside functions, (module, what): packages that not every run needs, and that
# together take longer to import than all the rest.
LATE_IMPORTS = {
    ("_descent", "optax"),
    ("_labelling", "xarray"),
    ("_progress", "tqdm"),
    ("_sgd", "optax"),
    ("_files", "xarray"),
    ("_netcdf", "h5netcdf"),
    ("_netcdf", "xarray.backends"),
    ("escape._column_generation", "scipy.optimize"),
    ("escape._search_folder", "xarray"),
    ("sweeps._collect", "xarray"),
    ("sweeps._commands", "xarray"),
    ("plotting._axes", "matplotlib.ticker"),
    ("plotting._measurements", "xarray"),
    ("plotting._overview", "matplotlib.figure"),
    ("plotting._style", "matplotlib"),
    ("sweeps._cluster", "distributed"),
    ("sweeps._cluster", "distributed.comm.core"),
    ("sweeps._first_escape", "xarray"),
    ("sweeps._store", "xarray"),
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


def test_every_module_has_a_place_in_the_order():
    assert set(ORDER) | {""} == set(TREES), "give new modules a place in ORDER"


@pytest.mark.parametrize("module", ORDER)
def test_imports_point_one_way(module):
    before = set(ORDER[: ORDER.index(module)])
    assert own_imports(module) <= before


def test_diagnostics_know_only_problem_and_net():
    for module in MODULES:
        if module.startswith("diagnostics."):
            assert own_imports(module) <= BEHIND_DIAGNOSTICS, module


def test_plotting_draws_any_dataset():
    """The functions of axes and datasets know nothing but how figures look."""
    look = {f"plotting.{name}" for name in ("_axes", "_annotated", "_labels", "_style")}
    for module in (*look, "plotting._trajectory"):
        assert own_imports(module) <= look, module


def test_only_the_command_imports_the_command():
    for module in MODULES:
        if module not in ("cli", "_report"):
            assert not own_imports(module) & {"cli", "_report"}, module


def test_nothing_but_the_command_draws():
    """Nor does the command's report look behind the public names."""
    for module in MODULES:
        if module and not module.startswith("plotting"):
            drawing = {name for name in own_imports(module) if name.startswith("plotting")}
            assert drawing <= ({"plotting"} if module == "_report" else set()), module


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
    if module not in ("_cache", "cli", "sweeps._worker"):
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
