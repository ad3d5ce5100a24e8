"""What gradient descent keeps of what the flow conserves (E9 of `tails.py`).

Le & Jegelka, first version, App. F.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

import gfdyn as gf
from experiments._common.claims import Claim, held, violations
from experiments.le_jegelka._random_nets import separable
from gfdyn.theory import le_jegelka as lj


def descents(rates: tuple[float, ...], duration: float) -> tuple[xr.Dataset, list[Claim]]:
    """E9: the slack of gradient descent, of a linear and a ReLU net. All rates take as many
    steps as the smallest one does in this duration; drifts are compared at its end."""
    problem, rng = separable(0, 4)
    ws = [0.5 * rng.normal(size=shape) for shape in ((6, 4), (5, 6), (1, 5))]
    names, claims, drifts = ("identity", "relu"), [], []
    ends = np.round(duration / np.asarray(rates)).astype(int)
    for name in names:
        net = gf.nets.MLP.from_weights(ws, name)
        slack = _slack(problem, net, jnp.asarray(rates), int(ends.max()))
        found, moved = jax.tree.map(np.asarray, slack)
        for i, (rate, end) in enumerate(zip(rates, ends, strict=True)):
            drifts.append(float(moved[i, : end + 1].max()))
            label = f"E9, {name}, rate {rate:g}: "
            claims += [
                Claim(
                    statement=f"{label}gap of the identity over ‖θ‖²",
                    source="first version, App. F",
                    measured=float(found["identity"][i].max()),
                    high=1e-12,
                ),
                held(
                    f"{label}drift against 2R(0)",
                    "first version, App. F",
                    found["bound"][i],
                ),
            ]
            if name == "relu":
                claims.append(
                    Claim(
                        statement=f"{label}first version: gap of the identity, all of M",
                        source="first version, App. F",
                        measured=float(found["first"][i].max()),
                        high=1e-12,
                        known_false=True,
                    )
                )
    table = np.reshape(drifts, (len(names), len(rates)))
    for name, drift in zip(names, table, strict=True):
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
    return xr.Dataset({"drift": (("activation", "rate"), table)}, coords=coords), claims


@eqx.filter_jit
def _slack(
    problem: gf.Problem, net: gf.nets.MLP, rates: Float[Array, " rates"], steps: int
) -> tuple[dict[str, Array], Float[Array, "rates times"]]:
    """Gaps of the identities and violations of the bound, of a descent with each rate; and
    how far the diagonals have moved."""

    def descended(rate: Array) -> tuple[dict[str, Array], Array]:
        traj = gf.descend(problem, net, rate, steps, save_every=1, throw=False)
        found = {
            "identity": lj.slack_identity(problem, traj.net, rate).lhs,
            "bound": violations(lj.slack_bound(problem, traj.net, rate)),
            "first": lj.slack_identity(problem, traj.net, rate, "first").lhs,
        }
        diagonals = jax.vmap(lambda n: [m.diagonal for m in n.conserved()])(traj.net)
        moved = [jnp.max(jnp.abs(d - d[:1]), axis=1) for d in diagonals]
        return found, jnp.max(jnp.stack(moved), axis=0)

    return jax.vmap(descended)(rates)
