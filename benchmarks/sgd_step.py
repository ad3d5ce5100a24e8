"""What a step of SGD costs in `gf.descend`: against a bare loop, and for many seeds.

An MLP-5-50 on digits in batches of 8, with the heavy ball and weight decay. The ratios:

* `step`: a step of `gf.descend` over one of a loop jitted by hand, which shuffles each
  epoch and does the same arithmetic;
* `seeds`: a step of 8 seeds under `jax.vmap` over one of a single seed; and the same of
  the bare loop, `bare_seeds`, which tells what is the compiler's;
* `sharded`: the same 8 seeds, in equal parts on all devices; processors are made to be two.

Compilation apart: each is the least of several runs that take turns, so that other jobs
on the machine disturb all alike. Beside the time that passed there is that of the
processor, which they disturb less, and what follows from it for a single seed: how many
operations of its matrix products a second. Where these are near what the processor can do
side by side, `jax.vmap` has nothing to save.

    python benchmarks/sgd_step.py [--smoke] [--out DIRECTORY]

writes `sgd_step.json`, with the machine and the versions.
"""

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import tyro
from _report import write_report
from jax.sharding import AxisType, PartitionSpec as Part

import gfdyn as gf


PACKAGES = ("jax", "equinox", "optax", "numpy")
SAMPLES, BATCH, SEEDS = 1408, 8, 8
WIDTHS = (64, *[50] * 5, 10)
RATE, MOMENTUM, DECAY = 0.01, 0.9, 2e-3
# Of the matrix products of a step: forwards, and to weights and inputs, but for the data.
OPERATIONS = 2 * BATCH * (3 * sum(a * b for a, b in pairwise(WIDTHS)) - 64 * 50)


def setting(dtype: str) -> tuple[gf.Problem, gf.nets.MLP]:
    """Digits and an MLP-5-50: five hidden layers of width 50."""
    data = gf.data.digits(SAMPLES, key=jax.random.key(0), dtype=dtype)
    net = gf.nets.MLP(list(WIDTHS), key=jax.random.key(1), scale=0.15, dtype=dtype)
    return gf.Problem(data, gf.losses.cross_entropy), net


def bare(
    weights: Any, key: Any, settings: Any, x: Any, y: Any, epochs: int
) -> tuple[Any, ...]:
    """SGD as one would write it: a scan over batches in a scan over epochs."""
    rate, momentum, decay = settings

    def risk(weights: Any, rows: Any) -> Any:
        a = x[rows]
        for w in weights[:-1]:
            a = jax.nn.relu(a @ w.T)
        logits = jax.nn.log_softmax(a @ weights[-1].T)
        return -jnp.mean(jnp.sum(y[rows] * logits, axis=1))

    def step(carry: Any, rows: Any) -> tuple[Any, None]:
        weights, velocity = carry
        gradient = jax.grad(risk)(weights, rows)
        velocity = jax.tree.map(
            lambda v, g, w: momentum * v + (g + 2 * decay * w), velocity, gradient, weights
        )
        return (jax.tree.map(lambda w, v: w - rate * v, weights, velocity), velocity), None

    def epoch(carry: Any, key: Any) -> tuple[Any, None]:
        order = jax.random.permutation(key, SAMPLES).reshape(-1, BATCH)
        return jax.lax.scan(step, carry, order)[0], None

    velocity = jax.tree.map(jnp.zeros_like, weights)
    keys = jax.random.split(key, epochs)
    return jax.lax.scan(epoch, (weights, velocity), keys)[0][0]


def contestants(dtype: str, epochs: int) -> dict[str, Callable[[], Any]]:
    """Each a run of so many epochs, compiled when it is first called."""
    problem, net = setting(dtype)
    steps = epochs * (SAMPLES // BATCH)
    settings = tuple(jnp.asarray(s, dtype) for s in (RATE, MOMENTUM, DECAY))
    key = jax.random.key(2)
    keys = jax.random.split(key, SEEDS)

    def ours(problem: gf.Problem, net: gf.nets.MLP, settings: Any, key: Any) -> Any:
        rate, momentum, decay = settings
        return gf.descend(
            problem,
            net,
            rate,
            steps,
            batch_size=BATCH,
            key=key,
            momentum=momentum,
            weight_decay=decay,
            save_every=steps,
            throw=False,
        ).final

    mesh = jax.make_mesh((len(jax.devices()),), ("seeds",), (AxisType.Auto,))
    parts = Part(), Part(), Part(), Part("seeds")
    each = jax.vmap(ours, in_axes=(None, None, None, 0))
    sharded = jax.jit(
        jax.shard_map(
            each, mesh=mesh, in_specs=parts, out_specs=Part("seeds"), check_vma=False
        )
    )
    x, y = problem.data.x, problem.data.y
    by_hand = jax.jit(bare, static_argnums=5)
    single = jax.jit(ours)
    many = jax.jit(each)
    axes = (None, 0, None, None, None, None)
    by_hand_many = jax.jit(jax.vmap(bare, in_axes=axes), static_argnums=5)
    return {
        "bare": lambda: by_hand(net.weights, key, settings, x, y, epochs),
        "single": lambda: single(problem, net, settings, key),
        "seeds": lambda: many(problem, net, settings, keys),
        "bare_seeds": lambda: by_hand_many(net.weights, keys, settings, x, y, epochs),
        "sharded": lambda: sharded(problem, net, settings, keys),
    }


def measure(dtype: str, epochs: int, repeats: int) -> dict[str, Any]:
    """Microseconds a step of each, and the ratios."""
    runs = contestants(dtype, epochs)
    least = dict.fromkeys(runs, float("inf"))
    busy = dict(least)
    for run in runs.values():
        jax.block_until_ready(run())
    for _ in range(repeats):
        for name, run in runs.items():
            started, used = time.perf_counter(), time.process_time()
            jax.block_until_ready(run())
            busy[name] = min(busy[name], time.process_time() - used)
            least[name] = min(least[name], time.perf_counter() - started)
    steps = epochs * (SAMPLES // BATCH)

    def per_step(times: dict[str, float]) -> dict[str, float]:
        return {name: 1e6 * seconds / steps for name, seconds in times.items()}

    return {
        "dtype": dtype,
        "devices": len(jax.devices()),
        "microseconds": per_step(least),
        "processor_microseconds": per_step(busy),
        "operations_a_second": OPERATIONS * steps / busy["single"],
        "step": least["single"] / least["bare"],
        "seeds": least["seeds"] / least["single"],
        "bare_seeds": least["bare_seeds"] / least["bare"],
        "sharded": least["sharded"] / least["single"],
    }


def main(
    out: Path = Path(__file__).parent,
    smoke: bool = False,
    epochs: int = 10,
    repeats: int = 20,
) -> None:
    """Measure, print and write the numbers.

    Args:
        out: where to.
        smoke: one epoch, one repeat, one precision.
        epochs: of a run, 176 steps each.
        repeats: runs of each, of which the fastest counts.
    """
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_num_cpu_devices", 2)
    if smoke:
        epochs, repeats = 1, 1
    precisions = ("float32",) if smoke else ("float32", "float64")
    rows = [measure(dtype, epochs, repeats) for dtype in precisions]
    for row in rows:
        names = ("step", "seeds", "bare_seeds", "sharded")
        ratios = ", ".join(f"{name} {row[name]:.2f}" for name in names)
        print(f"{row['dtype']}: {ratios}")
    settings = {"epochs": epochs, "repeats": repeats}
    write_report(out / "sgd_step.json", PACKAGES, settings=settings, rows=rows)


if __name__ == "__main__":
    tyro.cli(main)
