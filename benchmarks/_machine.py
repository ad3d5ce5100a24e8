"""What a benchmark was measured on."""

import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import jax


def machine(packages: Sequence[str]) -> dict[str, str | int | float | None]:
    """Processor, load, device, and the versions of Python and of these packages, None for
    one that is not there."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "device": jax.devices()[0].device_kind,
        "python": platform.python_version(),
        **{name: _version(name) for name in packages},
    }


def processor() -> str:
    """The processor's name, where the system tells it; else its architecture."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text().splitlines() if told.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
