"""What the command prints and writes, and the files of MNIST."""

import json
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np

import gfdyn as gf
from gfdyn.cli import _main as cli


FIGURES = {
    f"{name}.png"
    for name in ("overview", "loss", "escape_speed", "conserved", "singular_values")
}
VERSIONS = {"gfdyn", "jax", "jaxlib", "diffrax", "equinox", "optax", "numpy"}


def strict_json(path: Path) -> dict[str, Any]:
    """JSON as other languages read it: without NaN and Infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(path.read_text("utf-8"), parse_constant=refuse)


def check_summary(printed: str, traj: gf.Trajectory) -> None:
    """All that the main job promises to print, with the numbers of the trajectory."""
    stats = {name: int(value) for name, value in traj.stats.items()}
    assert traj.summary() in printed
    if traj.is_descent:
        assert f"steps            {stats['num_steps']}\n" in printed
    else:
        steps = f"{stats['num_steps']} accepted, {stats['num_rejected']} rejected"
        assert steps in printed
        assert re.search(r"certificate +energy residual \S+, balance drift \S+", printed)
    assert re.search(r"log t = -?\d", printed)
    assert re.search(r"radius r +\S+ → \S+ \(log r \S+ → \S+\)", printed)
    speed = float(traj.records["escape_speed"][-1])
    assert re.search(r"escape speed +\S+ at the start, (\S+) at the end", printed)
    assert f"{speed:.4g} at the end" in printed
    assert re.search(r"layer +norm +stable rank +top singular values", printed)
    for i, weight in enumerate(traj.flow.direction(traj.final_position).weights):
        (row,) = re.findall(rf"^ +W{i + 1} +(.+)$", printed, re.MULTILINE)
        norm, rank, largest = (float(number) for number in row.split()[:3])
        theta = np.asarray(traj.final.weights[i], float)
        assert weight.shape == theta.shape
        sigma = np.linalg.svd(theta)[1]
        np.testing.assert_allclose(norm, np.linalg.norm(theta), rtol=1e-3)
        np.testing.assert_allclose(rank, np.sum((sigma / sigma[0]) ** 2), rtol=1e-3)
        np.testing.assert_allclose(largest, sigma[0], rtol=1e-2)


def check_settings(
    settings: dict[str, Any], arguments: tuple[str, ...], traj: gf.Trajectory
) -> None:
    """Every option is there, by its name, as it was given; and what came of it."""
    assert settings["command"] == arguments[0]
    kind = {"escape": cli.Escape, "flow": cli.Flow, "descend": cli.Descend}[arguments[0]]
    assert set(settings["settings"]) == set(kind.__dataclass_fields__)
    for option, value in zip(arguments, arguments[1:], strict=False):
        if option.startswith("--") and not value.startswith("--"):
            stored = settings["settings"][option[2:].replace("-", "_")]
            same = stored == value if isinstance(stored, str) else stored == float(value)
            assert same, option
    assert isinstance(settings["settings"]["seed"], int)
    assert set(settings["versions"]) >= VERSIONS
    assert settings["versions"]["gfdyn"] == gf.__version__
    assert settings["seconds"] > 0 and settings["python"] and settings["machine"]
    outcome = settings["outcome"]
    assert outcome["num_steps"] == int(traj.stats["num_steps"])
    assert outcome["energy_residual"] == float(traj.certificate.energy_residual)
    assert outcome["stopped_by"] == (traj.stopped_by or "")


def write_mnist(folder: Path, n: int = 30) -> Path:
    """A small MNIST in IDX: stripes that depend on the class."""
    rng = np.random.default_rng(0)
    labels = np.arange(n, dtype=np.uint8) % 10
    images = rng.integers(0, 255, (n, 4, 5), dtype=np.uint8)
    path = folder / "train-images-idx3-ubyte"
    path.write_bytes(struct.pack(">4B3I", 0, 0, 8, 3, n, 4, 5) + images.tobytes())
    header = struct.pack(">4BI", 0, 0, 8, 1, n)
    (folder / "train-labels-idx1-ubyte").write_bytes(header + labels.tobytes())
    return path
