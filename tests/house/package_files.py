"""The modules of the package, and what they import."""

import ast
from collections.abc import Iterator
from pathlib import Path


ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "gfdyn"
FILES = sorted(PACKAGE.rglob("*.py"))


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
