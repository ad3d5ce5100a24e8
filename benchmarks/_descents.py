"""Where gradient descent of small steps ends: in C++ on networks without biases."""

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import gfdyn as gf


def descents(
    plain: bool,
    flows: Sequence[gf.GradientFlow | gf.EscapeFlow],
    nets: Sequence[Any],
    steps: Sequence[float],
    t1: float,
) -> np.ndarray:
    """θ at `t1` of each net and each step, (nets, steps, parameters), float64: by
    `descent.cpp` for the squared loss of `plain` ReLU networks, where there is a g++; by a
    loop in JAX over all nets at once, which is slower, elsewhere."""
    flows = [_gradient_flow(flow) for flow in flows]
    if plain and shutil.which("g++"):
        return in_cpp(flows, nets, steps, t1)
    return in_jax(flows, nets, steps, t1)


def _gradient_flow(flow: gf.GradientFlow | gf.EscapeFlow) -> gf.GradientFlow:
    return flow if isinstance(flow, gf.GradientFlow) else gf.GradientFlow(flow.problem)


def in_cpp(
    flows: Sequence[gf.GradientFlow],
    nets: Sequence[gf.nets.MLP],
    steps: Sequence[float],
    t1: float,
) -> np.ndarray:
    """The same by `descent.cpp`."""
    first, samples = nets[0], len(flows[0].problem.data.x)
    widths = [first.weights[0].shape[1], *(w.shape[0] for w in first.weights)]
    with tempfile.TemporaryDirectory() as folder:
        program, given, found = (Path(folder, name) for name in ("descent", "in", "out"))
        sizes = f"-DDIMS={','.join(map(str, widths))}", f"-DSAMPLES={samples}"
        source = Path(__file__).with_name("descent.cpp")
        flags = "-O3", "-march=native", "-fno-math-errno"
        subprocess.run(["g++", *flags, *sizes, source, "-o", program], check=True)
        of_each = [
            np.concatenate([*map(np.ravel, (flow.problem.data.x, flow.problem.data.y)), p])
            for flow, p in zip(flows, map(flat, nets), strict=True)
        ]
        np.stack(of_each).astype(np.float64).tofile(given)
        subprocess.run([program, given, found, repr(t1), *map(repr, steps)], check=True)
        return np.fromfile(found).reshape(len(nets), len(steps), -1)


def in_jax(
    flows: Sequence[gf.GradientFlow],
    nets: Sequence[Any],
    steps: Sequence[float],
    t1: float,
) -> np.ndarray:
    """The same by automatic differentiation of the energy, all nets at once."""

    def stack(*leaves: Any) -> Any:
        return jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0]

    all_flows, all_nets = (jax.tree.map(stack, *group) for group in (flows, nets))
    ends = [
        eqx.filter_vmap(partial(_descend, step=step, count=round(t1 / step)))(
            all_flows, all_nets
        )
        for step in steps
    ]
    return np.stack([np.asarray(end) for end in ends], axis=1)


@eqx.filter_jit
def _descend(flow: gf.GradientFlow, net: Any, step: float, count: int) -> jax.Array:
    def after(_: Any, net: Any) -> Any:
        gradient = jax.grad(lambda n: flow.energy(flow.start(n)))(net)
        return jax.tree.map(lambda w, g: w - step * g, net, gradient)

    return ravel_pytree(jax.lax.fori_loop(0, count, after, net))[0]


def flat(net: Any) -> np.ndarray:
    """θ of a network as one vector."""
    return np.asarray(ravel_pytree(net)[0])
