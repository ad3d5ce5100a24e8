"""What computed the points of a sweep, and whether versions are mixed in its folder."""

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..._atomic import replace_atomically
from ..spec import has_doubles
from ._store import Store


# Those that decide the last bits of results.
BINDING = ("gfdyn", "jax", "jaxlib")
_PACKAGES = (*BINDING, "diffrax", "equinox", "optax", "numpy", "xarray")


def sign(store: Store, begun: bool, mix_versions: bool) -> None:
    """Write to the manifest that this process computes points of the sweep.

    Args:
        store: the folder.
        begun: whether it has points already, or batches under way.
        mix_versions: go on where other versions have begun, and keep their manifests.

    Raises:
        ValueError: if other versions have begun, or nobody knows which, naming them.
    """
    theirs = _read(store)
    differing = _difference(theirs) if begun else ""
    if begun and not differing:
        return
    if differing and not mix_versions:
        raise ValueError(
            f"{store.path}: {differing}; give a folder of its own, or go on all the same "
            "with mix_versions=True (--mix-versions), as the manifest will say."
        )
    if theirs is None and os.path.lexists(store.manifest):
        store.reject(store.manifest)
    ours = _own()
    if differing:
        store.note(f"mix_versions: {differing}")
        earlier = {} if theirs is None else theirs
        ours["before"] = [*earlier.pop("before", []), earlier or "unknown"]
    text = json.dumps(ours, indent=2)
    replace_atomically(store.manifest, lambda path: path.write_text(text, "utf-8"))


def mixture(store: Store) -> str:
    """The versions that computed points of a sweep, if they are several; else empty."""
    manifest = _read(store) or {}
    before = manifest.get("before", [])
    return "; ".join(map(_label, [*before, manifest])) if before else ""


def versions(names: tuple[str, ...] = BINDING) -> dict[str, str]:
    """The versions of packages in this process."""
    return {name: version(name) for name in names}


def _own() -> dict[str, Any]:
    return {
        "versions": versions(_PACKAGES),
        "x64": has_doubles(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "git": _git_revision(),
    }


def _read(store: Store) -> dict[str, Any] | None:
    """The manifest in a folder; None if there is none that can be read."""
    try:
        manifest = json.loads(store.manifest_text())
        sound = set(BINDING) <= set(manifest["versions"])
    except (ValueError, KeyError, TypeError):
        return None
    return manifest if sound else None


def _difference(theirs: Mapping[str, Any] | None) -> str:
    """How a manifest differs from this process in what decides results; empty if it does
    not."""
    if theirs is None:
        return "no manifest.json says which versions computed the points that are there"
    own = {**versions(), "x64": has_doubles()}
    differing = [
        f"{name}={value} where this process has {own[name]}"
        for name, value in _deciding(theirs).items()
        if value != own[name]
    ]
    return "its points were computed with " + ", ".join(differing) if differing else ""


def _deciding(manifest: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: manifest["versions"][name] for name in BINDING}
    # Manifests of older versions do not have it.
    return found | ({"x64": manifest["x64"]} if "x64" in manifest else {})


def _label(manifest: Mapping[str, Any] | str) -> str:
    if isinstance(manifest, str):
        return "unknown versions"
    return ", ".join(f"{name} {value}" for name, value in _deciding(manifest).items())


def _git_revision() -> str | None:
    """Of the checkout that gfdyn runs from, if it does."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    here = Path(__file__).parent
    try:
        return subprocess.run(
            command, cwd=here, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
