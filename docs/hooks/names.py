"""The public names of the package, read from its files: nothing is imported."""

import ast
from pathlib import Path


PACKAGE = Path(__file__).resolve().parents[2] / "gfdyn"
ROOMS = (
    "data",
    "losses",
    "nets",
    "flows",
    "solvers",
    "stopping",
    "diagnostics",
    "escape",
    "sweeps",
    "plotting",
    "theory",
    "theory.bantzis",
    "theory.galanti",
    "theory.le_jegelka",
    "theory.timor",
)


def public_names() -> dict[str, tuple[str, ...]]:
    """The names of each room, by its path; those of the package itself by "gfdyn"."""
    rooms = {"gfdyn": PACKAGE / "__init__.py"}
    for room in ROOMS:
        folder = PACKAGE.joinpath(*room.split("."))
        is_file = folder.with_suffix(".py").is_file()
        rooms[f"gfdyn.{room}"] = (
            folder.with_suffix(".py") if is_file else folder / "__init__.py"
        )
    return {room: _names(file) for room, file in rooms.items()}


def _names(file: Path) -> tuple[str, ...]:
    """What a room re-exports, or what a room of one file defines; but no other rooms."""
    names: list[str] = []
    for node in ast.parse(file.read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.level and node.module:
            names += [alias.asname for alias in node.names if alias.asname]
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            names += [node.name] if not node.name.startswith("_") else []
    return tuple(names)
