"""A network as a fixed tree of its paths, ν = μ∘h, exactly as Le & Jegelka construct it.

The paper has no experiment. Here (E10): the output of five architectures and of random
graphs by all forms of the decomposition, its derivatives, and where the statements on paths
fail: jagged paths in the first version, Lemma 8 as the corrected one prints it.

    python -m experiments.le_jegelka.decomposition [--smoke] [--out DIR]

writes errors.nc, the figure and claims.json.
"""

import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

import gfdyn as gf
from experiments._common.claims import Claim, held, violations
from experiments._common.output import write
from experiments._common.settings import read_settings
from experiments.le_jegelka._random_nets import normal_net
from gfdyn.nets import conv, dense, resnet_free, resnet_identity
from gfdyn.theory import le_jegelka as lj


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """E10."""

    graphs: int = 20
    """Random graphs."""
    samples: int = 20
    """Normal inputs."""
    smoke: bool = False
    """Few graphs."""
    out: Path = Path("results/le_jegelka/decomposition")
    """Folder to write to."""


SMOKE = {"graphs": 2, "samples": 6}
LEAKY = "FC, leaky"
OUTPUT = dense(1, "identity")
BLOCKS = {
    "ResNetIdentity": (3, [resnet_identity(2), OUTPUT]),
    "ResNetFree": (3, [resnet_free(2, 3), OUTPUT]),
    "conv": ((4, 1), [conv(2, 2), conv(2, 2), OUTPUT]),
    "FC, biases": (3, [dense(3, bias=True), dense(2, bias=True), OUTPUT]),
}


def main(arguments: list[str] | None = None) -> int:
    """Run, and write data, figure and claims."""
    settings = read_settings(Settings, __doc__, SMOKE, arguments)
    jax.config.update("jax_enable_x64", True)
    started = time.perf_counter()
    rng = np.random.default_rng(0)
    made = nets(settings, rng)
    found = {name: errors(net, settings, rng) for name, net in made.items()}
    data = xr.Dataset(
        {
            name: ("net", [row[name] for row in found.values()])
            for name in ("paths", "outputs", "gradients", "edges")
        },
        coords={"net": list(found)},
    )
    claims = [*error_claims(data), *failures(made[LEAKY], settings, rng)]
    write(settings.out, settings, claims, {"errors": data}, {"errors": draw(data)}, started)
    return 0


def nets(settings: Settings, rng: np.random.Generator) -> dict[str, Any]:
    """Fully connected, residual, convolutional and biased ones, and graphs."""
    made: dict[str, Any] = {
        name: gf.nets.MLP.from_weights(
            [rng.normal(size=shape) for shape in ((4, 3), (3, 4), (1, 3))], sigma
        )
        for name, sigma in (("FC", "relu"), (LEAKY, "leaky_relu(0.2)"))
    }
    made |= {name: normal_net(shape, of, rng) for name, (shape, of) in BLOCKS.items()}
    return made | {f"graph {i}": graph(rng) for i in range(settings.graphs)}


def graph(rng: np.random.Generator) -> gf.nets.Dag:
    """Two inputs and six more vertices, each fed by up to three before it."""
    edges = [
        (int(u), v)
        for v in range(2, 8)
        for u in rng.choice(v, size=min(v, 3), replace=False)
    ]
    idle = set(range(2, 8)) - {u for u, _ in edges}
    edges += [(v, 8) for v in sorted(idle | {6, 7})]
    return gf.nets.Dag(edges, rng.normal(size=len(edges)), 2, activation="leaky_relu(0.3)")


def errors(net: Any, settings: Settings, rng: np.random.Generator) -> dict[str, Any]:
    """Of the outputs in all forms, of ∇μ and of eq. (2), each over the size of terms."""
    x = rng.normal(size=(settings.samples, net.in_size))
    found = lj.decompose(net)
    h, absolute = found.values(x), found.absolute_values(x)
    size = np.abs(h).sum(axis=1)
    forms = [
        found.signed(h),
        found.absolute(absolute),
        np.sum(found.gates(x) * h, axis=1),
        found.unrolled(found.starts(x)),
    ]

    def outputs_of(dag: gf.nets.Dag) -> tuple[jax.Array, jax.Array]:
        outputs = dag(jnp.asarray(x))[:, 0]
        return outputs, outputs

    jacobian, outputs = jax.jit(jax.jacrev(outputs_of, has_aux=True))(found.dag)
    jacobian = jacobian.values
    by_edge, by_weight = found.edge_gradients(x), np.zeros(jacobian.shape)
    for edge, number in enumerate(found.dag.parameters):
        if number >= 0:
            by_weight[:, number] += by_edge[:, edge]
    slopes = [
        found.signed.gradient(h) - found.gates(x),
        found.absolute.gradient(absolute) - found.gates(x) * found.signs,
    ]
    return {
        "paths": h.shape[1],
        "outputs": max(np.abs((form - outputs) / size).max() for form in forms),
        "gradients": max(np.abs(gap).max() for gap in slopes),
        "edges": np.abs(by_weight - jacobian).max() / np.abs(jacobian).max(),
    }


def error_claims(data: xr.Dataset) -> list[Claim]:
    """All of them rounding."""
    said = {
        "outputs": "ν = μ∘h = μ′∘h′ = ⟨Z, h⟩",
        "gradients": "∇μ = Z and ∇μ′ = Z Π sgn(w)",
        "edges": "eq. (2) against the derivative in each weight",
    }
    return [
        Claim(
            statement=f"E10: {what}, largest error of {data.sizes['net']} nets",
            source="Lemma 1",
            measured=float(data[name].max()),
            high=1e-12,
        )
        for name, what in said.items()
    ]


def failures(net: gf.nets.MLP, settings: Settings, rng: np.random.Generator) -> list[Claim]:
    """Jagged paths, and paths through a neuron on its kink, by the versions."""
    x = rng.normal(size=(settings.samples, 3))
    problem = gf.Problem(gf.Dataset(x, np.sign(x[:, :1])), gf.losses.logistic)
    jagged = lj.jagged_path_sums(problem, net, 3, 5)
    first = lj.jagged_path_sums(problem, net, 3, 5, version="first")
    # The second neuron of the first layer is on its kink at x = (1, 0).
    w1, w2 = np.array([[1.0, 0.5], [0.0, 1.0]]), np.array([[1.0, 1.0], [-0.5, 2.0]])
    kinked = gf.nets.MLP.from_weights([w1, w2, np.array([[1.0, -2.0]])])
    at = gf.Problem(gf.Dataset([[1.0, 0.0]], [[1.0]]), gf.losses.logistic)
    lemma = lj.equal_path_subdifferentials(at, kinked)
    printed = lj.equal_path_subdifferentials(at, kinked, version="second")
    rows = [
        ("E10: jagged paths with equal gates", "corrected, eq. 50", jagged, False),
        ("E10: first version: jagged paths", "first version, eq. 43", first, True),
        ("E10: equal subdifferentials off kinks", "Lemma 8", lemma, False),
        ("E10: as printed: and on kinks", "corrected version, Lemma 8", printed, True),
    ]
    return [
        held(statement, source, violations(check), known_false=known_false)
        for statement, source, check, known_false in rows
    ]


def draw(data: xr.Dataset) -> Figure:
    """Errors over the number of paths."""
    figure = Figure(figsize=(5.5, 3.6), layout="constrained")
    ax = figure.subplots()
    for name in ("outputs", "gradients", "edges"):
        ax.plot(data["paths"], np.maximum(data[name], 1e-18), "o", label=name, alpha=0.7)
    ax.axhline(1e-12, color="0.3", linestyle="--")
    ax.set(xscale="log", yscale="log", xlabel="paths", ylabel="relative error")
    ax.legend(fontsize=8)
    return figure


if __name__ == "__main__":
    sys.exit(main())
