"""Classes are abstract or final, modules without state, and all is documented."""

import ast
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from package_files import MODULES, PACKAGE, ROOT, TREES, imports

import gfdyn as gf


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
