"""What importing the package does, and does not."""

import importlib
import json
import os
import subprocess
import sys

import pytest
from package_files import MODULES


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
