"""Which room imports which."""

import ast

import pytest
from package_files import MODULES, PACKAGES, TREES, imports


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
    "_seal",
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
    "escape.chain",
    "escape.episodes",
    "escape",
    "theory._check",
    "theory._neuron_balance",
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
    "_numbers",
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
    ("descent._arguments", "optax"),
    ("run._labelling", "xarray"),
    ("_progress", "tqdm"),
    ("descent._sgd", "optax"),
    ("run._state", "h5py"),
    ("_netcdf", "h5netcdf"),
    ("_netcdf", "xarray.backends"),
    ("escape.exact._column_generation", "scipy.optimize"),
    ("escape.search._search_folder", "xarray"),
    ("sweeps.results._collect", "xarray"),
    ("cli._sweep", "xarray"),
    ("plotting._axes", "matplotlib.ticker"),
    ("plotting._measurements", "xarray"),
    ("plotting._chain", "matplotlib.figure"),
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
    """The functions of axes and datasets know how figures look, and what a number is."""
    look = {f"plotting.{name}" for name in ("_axes", "_annotated", "_labels", "_style")}
    for module in (*look, "plotting._trajectory"):
        assert own_imports(module) <= look | {"_numbers"}, module


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


def test_public_names_are_reexported_plainly():
    """`X as X`, and no logic, in every `__init__`."""
    for module in PACKAGES:
        for node in TREES[module].body:
            if isinstance(node, ast.ImportFrom) and node.level:
                assert all(alias.asname == alias.name for alias in node.names), module
            elif module:
                assert isinstance(node, ast.Expr), ast.unparse(node)
