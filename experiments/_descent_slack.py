"""What gradient descent keeps of what the flow conserves (E9 of `le_jegelka_tails.py`).

Le & Jegelka, first version, App. F.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from _claims import Claim

import gfdyn as gf
from gfdyn.theory import le_jegelka as lj


def separable(seed: int, inputs: int) -> tuple[gf.Problem, np.random.Generator]:
    """Eight random directions, labelled by a linear teacher."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(8, inputs))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = np.sign(x @ rng.normal(size=inputs))[:, None]
    return gf.Problem(gf.Dataset(x, y), gf.losses.logistic), rng


def descents(rates: tuple[float, ...], duration: float) -> tuple[xr.Dataset, list[Claim]]:
    """E9: the slack of gradient descent, of a linear and a ReLU net."""
    problem, rng = separable(0, 4)
    ws = [0.5 * rng.normal(size=shape) for shape in ((6, 4), (5, 6), (1, 5))]
    names, claims, drifts = ("identity", "relu"), [], []
    for name in names:
        net = gf.nets.MLP.from_weights(ws, name)
        for rate in rates:
            steps = round(duration / rate)
            nets = gf.descend(problem, net, rate, steps, save_every=1).net
            label = f"E9, {name}, rate {rate:g}: "
            identity = lj.slack_identity(problem, nets, rate)
            diagonals = jax.vmap(lambda n: [m.diagonal for m in n.conserved()])(nets)
            drifts.append(max(float(jnp.max(jnp.abs(d - d[:1]))) for d in diagonals))
            claims += [
                Claim(
                    statement=f"{label}gap of the identity over ‖θ‖²",
                    source="first version, App. F",
                    measured=float(jnp.max(identity.lhs)),
                    high=1e-12,
                ),
                held(
                    f"{label}drift against 2R(0)",
                    "first version, App. F",
                    lj.slack_bound(problem, nets, rate),
                ),
            ]
            if name == "relu":
                first = lj.slack_identity(problem, nets, rate, "first")
                claims.append(
                    Claim(
                        statement=f"{label}first version: gap of the identity, all of M",
                        source="first version, App. F",
                        measured=float(jnp.max(first.lhs)),
                        high=1e-6,
                    )
                )
    found = np.reshape(drifts, (len(names), len(rates)))
    for name, drift in zip(names, found, strict=True):
        last = np.asarray(rates[-2:])
        order = np.log(drift[-2] / drift[-1]) / np.log(last[0] / last[1])
        claims.append(
            Claim(
                statement=f"E9, {name}: order of the drift of the diagonal in the rate",
                source="ours",
                measured=float(order),
                low=0.9,
                high=1.1,
            )
        )
    coords = {"activation": list(names), "rate": list(rates)}
    return xr.Dataset({"drift": (("activation", "rate"), found)}, coords=coords), claims


def held(statement: str, source: str, check: Any) -> Claim:
    """How often a check is violated: never."""
    return Claim(
        statement=f"{statement}, entries violated",
        source=source,
        measured=float(jnp.sum(check.applies & ~check.holds)),
        high=0,
    )
