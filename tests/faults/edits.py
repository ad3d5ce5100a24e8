"""Edits of the metadata and numbers of a saved trajectory, as of someone who knows the
format: what no trajectory can be, with a checksum that is right.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gfdyn.run._serialise import _known_classes
from gfdyn.run._state import read_state, write_state


Arrays = dict[str, np.ndarray]
# A place in the tree: what holds it, the key there, and the names that lead to it.
Place = tuple[Any, Any, tuple[str, ...]]
Edit = Callable[[np.random.Generator, Place, Arrays], bool]

# A solver's own state, and what is only in some files, could be otherwise.
_OF_THE_SOLVER = ("solver_leaves", "optimizer_state")
_OPTIONAL = ("initial_time", "kinks", "checkpoint", "side", "other_side", "decay_mask")
_OPTIONAL += ("choices", "residual_limit", "localized", "norm", "solver", "rtol")
_CHOICES = {"reduction": ("mean", "sum"), "clock": ("physical", "loss", "arc")}


def edited(random: np.random.Generator, file: Path) -> str:
    """Edit one field of a file and compute its checksum anew; the name of the field."""
    state = read_state(file)
    tree, arrays = json.loads(state.tree), state.arrays
    places = list(_places({"dict": tree}, ()))
    while True:
        place = places[random.integers(len(places))]
        edit = EDITS[random.integers(len(EDITS))]
        if edit(random, place, arrays):
            break
    write_state(file, json.dumps(tree), arrays)
    return place[2][0]


def _places(node: Any, names: tuple[str, ...]) -> Iterator[Place]:
    """All fields and entries below a node."""
    if not isinstance(node, dict):
        return
    for inner in (node.get("fields"), node.get("dict"), node.get("tuple")):
        listed = enumerate(inner) if isinstance(inner, list) else (inner or {}).items()
        for key, value in listed:
            yield inner, key, (*names, str(key))
            yield from _places(value, (*names, str(key)))


def _other_kind(random: np.random.Generator, place: Place, arrays: Arrays) -> bool:
    """A string, a number or a tree of no kind."""
    holder, key, _ = place
    others: list[Any] = ["evil", "1", -1.5, {"evil": 1}, {"tuple": ["evil"]}, ["evil"]]
    others.append({"class": "Popen", "fields": {}})
    new = others[random.integers(len(others))]
    # A number may stand for a number.
    if isinstance(new, float) and isinstance(holder[key], float | int):
        return False
    if place[2] == ("stop_names",) or isinstance(new, float) and key == "initial_time":
        return False
    holder[key] = new
    return True


def _other_choice(random: np.random.Generator, place: Place, arrays: Arrays) -> bool:
    """Another of the values that a setting may have."""
    holder, key, _ = place
    others = [each for each in _CHOICES.get(key, ()) if each != holder[key]]
    if others:
        holder[key] = others[random.integers(len(others))]
    return bool(others)


def _other_class(random: np.random.Generator, place: Place, arrays: Arrays) -> bool:
    """One class swapped for another."""
    node = place[0][place[1]]
    if not isinstance(node, dict) or "class" not in node:
        return False
    names = [name for name in _known_classes() if name != node["class"]]
    node["class"] = names[random.integers(len(names))]
    return True


def _gone(random: np.random.Generator, place: Place, arrays: Arrays) -> bool:
    """A field or an entry gone."""
    holder, key, names = place
    if key in _OPTIONAL or set(names) & {*_OF_THE_SOLVER, "num_compilations"}:
        return False
    del holder[key]
    return True


def _added(random: np.random.Generator, place: Place, arrays: Arrays) -> bool:
    """A field or an entry more."""
    holder, _, names = place
    if isinstance(holder, list):
        if "stop_names" in names:
            return False
        holder.append(1)
    else:
        holder["evil"] = "1"
    return True


def _other_array(random: np.random.Generator, place: Place, arrays: Arrays) -> bool:
    """An array of another dtype or shape, or that holds what cannot be there."""
    holder, key, names = place
    name = ".".join(names)
    if name not in arrays or set(names) & set(_OF_THE_SOLVER):
        return False
    array = arrays[name]
    floating = array.dtype.kind == "f"
    kind = random.integers(5)
    if kind == 0:
        smaller = np.float16 if array.dtype == np.float32 else np.float32
        new = array.astype(smaller if floating else np.float64)
    elif kind == 1:
        new = array[None]
    elif kind == 2 and array.ndim and array.size:
        new = array[:-1]
    elif kind == 3 and array.ndim == 0:
        new = np.stack([array, array])
    elif kind == 4 and array.size:
        new = array.copy()
        if array.dtype.kind == "i":
            new.flat[random.integers(array.size)] = -2
        # Of an event that did not happen, as jit keeps them
        elif floating and names != ("kinks", "time"):
            new.flat[random.integers(array.size)] = np.nan
        else:
            return False
    else:
        return False
    arrays[name] = new
    return True


def _another_s(random: np.random.Generator, place: Place, arrays: Arrays) -> bool:
    """The array of another field."""
    node = place[0][place[1]]
    if not isinstance(node, dict) or "array" not in node or len(arrays) < 2:
        return False
    names = [name for name in arrays if name != node["array"]]
    node["array"] = names[random.integers(len(names))]
    return True


EDITS: tuple[Edit, ...] = (
    _other_kind,
    _other_choice,
    _other_class,
    _gone,
    _added,
    _other_array,
    _another_s,
)
