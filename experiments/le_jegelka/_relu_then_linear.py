"""A ReLU layer and linear ones behind it: the tail comes near rank one, the ReLU layer does
not.

Experiment E5 of `tails.py`.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import gfdyn as gf
from experiments._common.claims import Claim, near
from experiments.le_jegelka._random_nets import separable
from gfdyn.theory import le_jegelka as lj


RTOL = 1e-7
SHAPES = ((6, 4), (5, 6), (4, 5), (1, 4))


def start(loss: str) -> tuple[gf.Problem, gf.nets.MLP]:
    """4 → ReLU 6 → 5 → 4 → 1 on eight samples; smaller weights for the squared loss."""
    problem, rng = separable(0, 4)
    scale = 0.1 if loss == "squared" else 0.5
    ws = [scale * rng.normal(size=shape) for shape in SHAPES]
    problem = gf.Problem(problem.data, getattr(gf.losses, loss))
    return problem, gf.nets.MLP.from_weights(ws, ["relu", "identity", "identity"])


def flow(loss: str, end: float, smoke: bool) -> gf.Trajectory:
    """Up to this arc length; in physical time for the squared loss, whose norms stay. In a
    trial by an ordinary solve, whose program is much smaller."""
    problem, net = start(loss)
    clock = "physical" if loss == "squared" else "arc"
    exact, ordinary = gf.solvers.ExactKinks(rtol=RTOL), gf.solvers.Adaptive(rtol=RTOL)
    return gf.solve(
        gf.GradientFlow(problem, clock=clock),
        net,
        ts=np.linspace(0, end, 61),
        solver=ordinary if smoke else exact,
    )


@eqx.filter_jit
def _measured(net: gf.nets.MLP, nets: gf.nets.AbstractNet) -> dict[str, Array]:
    """Ratios at the end, the constants D, how far M has moved, and ‖θ‖² at the end."""
    final = jax.tree.map(lambda leaf: leaf[-1], nets)
    moved = []
    for i in range(3):
        m = jax.vmap(lambda n, i=i: n.conserved()[i].matrix)(nets)
        moved.append(jnp.max(jnp.abs(m - m[:1])))
    return {
        "ratios": lj.tail_spectra(final, "first").ratio,
        "bounds": lj.tail_constants(net).bound,
        "moved": jnp.stack(moved),
        "size": gf.nets.norm(final) ** 2,
    }


def claims_on(loss: str, traj: gf.Trajectory) -> list[Claim]:
    """What is known of these runs, and what the first version says of the ReLU layer."""
    _, net = start(loss)
    of = jax.tree.map(np.asarray, _measured(net, traj.net))
    relu, *linear = of["ratios"][:-1].tolist()
    label = f"E5, {loss}: "

    claims = [
        Claim(
            statement=f"{label}drift of M of the linear layers over ‖θ‖²",
            source="corrected Theorem 1",
            measured=float(of["moved"][1:].max() / of["size"]),
            high=100 * RTOL,
        ),
        Claim(
            statement=f"{label}first version: drift of M of the ReLU layer over ‖θ‖²",
            source="first version, Theorem 1",
            measured=float(of["moved"][0] / of["size"]),
            high=100 * RTOL,
            known_false=True,
        ),
        Claim(
            statement=f"{label}first version: ratio of the ReLU layer at the end",
            source="first version, Cor. 1",
            measured=relu,
            low=0.99,
            known_false=True,
        ),
    ]
    # Of the squared loss (15) says nothing, as its norms do not diverge. Its ends are those
    # of gradient descent too, by NumPy at rates 0.02 and 0.005.
    ends = (0.8893, 0.9519) if loss == "squared" else (0.959, 0.9845)
    claims += [
        near(f"{label}ratio of W{i} at the end", "ours", ratio, end, 0.01)
        for i, ratio, end in zip((2, 3), linear, ends, strict=True)
    ]
    if loss != "squared":
        claims += [
            near(f"{label}D of W{i}", "ours", float(bound), d, 0.01)
            for i, bound, d in zip((2, 3), of["bounds"], (10.3, 4.77), strict=True)
        ]
    return claims
