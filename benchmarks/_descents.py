"""Where gradient descent of small steps ends, on networks without biases: in C++."""

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import gfdyn as gf


def descents(
    problems: Sequence[gf.Problem],
    nets: Sequence[gf.nets.MLP],
    steps: Sequence[float],
    t1: float,
) -> np.ndarray:
    """θ at `t1` of each net and each step, (nets, steps, parameters), by `descent.cpp`; by
    `gf.descend`, which is slower, where there is no g++. float64."""
    compiler = shutil.which("g++")
    if compiler is None:
        pairs = zip(problems, nets, strict=True)
        return np.stack([by_gfdyn(*pair, steps, t1) for pair in pairs])
    first, data = nets[0], problems[0].data
    widths = [first.weights[0].shape[1], *(w.shape[0] for w in first.weights)]
    with tempfile.TemporaryDirectory() as folder:
        program, given, found = (Path(folder, name) for name in ("descent", "in", "out"))
        sizes = f"-DDIMS={','.join(map(str, widths))}", f"-DSAMPLES={len(data.x)}"
        source = Path(__file__).with_name("descent.cpp")
        flags = "-O3", "-march=native", "-fno-math-errno"
        subprocess.run([compiler, *flags, *sizes, source, "-o", program], check=True)
        of_each = [
            np.concatenate([np.ravel(p.data.x), np.ravel(p.data.y), flat(net)])
            for p, net in zip(problems, nets, strict=True)
        ]
        np.stack(of_each).astype(np.float64).tofile(given)
        subprocess.run([program, given, found, repr(t1), *map(repr, steps)], check=True)
        return np.fromfile(found).reshape(len(nets), len(steps), -1)


def by_gfdyn(
    problem: gf.Problem, net: gf.nets.MLP, steps: Sequence[float], t1: float
) -> np.ndarray:
    """The same of one net, (steps, parameters), by `gf.descend`."""
    ends = [gf.descend(problem, net, step, round(t1 / step)).final for step in steps]
    return np.stack([flat(end) for end in ends])


def flat(net: Any) -> np.ndarray:
    """θ of an MLP as one vector."""
    return np.concatenate([np.ravel(w) for w in jax.device_get(net.weights)])
