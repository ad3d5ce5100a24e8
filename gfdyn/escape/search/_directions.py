"""What a search for escape directions gives back."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, DTypeLike, Float, Int

from ...nets import MLP
from ._clusters import levels
from ._convergence import Found


_MAX_LINES = 20


class Directions(eqx.Module):
    """The directions that were found, the fastest first; one row for each function that
    they compute on the data.

    Attributes:
        speed: s, (directions,), falling.
        net: ρ, with a leading axis; ‖ρ‖² = L, every neuron balanced.
        count: how many starts led there.
        converged: whether the flow came to rest. If not, s is a lower bound of what the
            flow reaches from there, and the row no escape direction.
        residual: the Clarke residual ‖∂L₀(ρ) + sρ‖, 0 for an escape direction.
        ranks: `gf.diagnostics.numerical_rank` of each layer, (directions, L).
        layer_norms: ‖W_l‖_F, (directions, L); 1 for an escape direction.
        imbalance: the largest |‖W_{l+1,·i}‖² − ‖W_{l,i·}‖²| of a neuron; 0 for one.
        kinks: `gf.diagnostics.kink_count` of each hidden layer, (directions, L−1).
        index: the row to which each start led, (starts,); −1 where it died.
        all_speeds: the speed of that row; where the start died, what it was left with.
        descent_speeds: the speed of each start when its descent ended, (starts,).
    """

    speed: Float[Array, " directions"]
    net: MLP
    count: Int[Array, " directions"]
    converged: Bool[Array, " directions"]
    residual: Float[Array, " directions"]
    ranks: Int[Array, "directions layers"]
    layer_norms: Float[Array, "directions layers"]
    imbalance: Float[Array, " directions"]
    kinks: Int[Array, "directions hidden"]
    index: Int[Array, " starts"]
    all_speeds: Float[Array, " starts"]
    descent_speeds: Float[Array, " starts"]

    @property
    def optimal(self) -> MLP:
        """The net of the fastest direction.

        Raises:
            ValueError: if every start died.
        """
        if not self.speed.shape[0]:
            raise ValueError(
                f"no direction was found, all {len(self.index)} starts died (s ≤ 0); use "
                "more starts or wider layers."
            )
        return jax.tree.map(lambda w: w[0], self.net)

    @property
    def dead_fraction(self) -> float:
        """The fraction of starts that died: no path left of positive speed."""
        return float(np.mean(np.asarray(self.index) < 0))

    def success_fraction(self, threshold: float) -> float:
        """The fraction of starts that led to a speed above the threshold."""
        return float(np.mean(np.asarray(self.all_speeds) > threshold))

    def summary(self) -> str:
        """A table with a line for each speed."""
        return _summary(self)


def collect(
    found: list[Found], rows: np.ndarray, descent_speeds: np.ndarray, template: MLP
) -> Directions:
    """Sorted, from the directions found and the one that each start led to, −1 for none;
    `template` is a net of their kind."""
    speeds = np.asarray([float(f.speed) for f in found])
    order = np.argsort(-speeds, kind="stable")
    index = np.append(np.argsort(order), -1)[rows]
    dtype, depth = template.weights[0].dtype, len(template.weights)
    empty = jax.tree.map(lambda w: jnp.zeros((0, *w.shape), w.dtype), template)

    def stacked(name: str, dtype: DTypeLike, *shape: int) -> Array:
        values = [np.asarray(getattr(found[i], name)) for i in order]
        return jnp.asarray(np.reshape(values, (len(order), *shape)), dtype)

    nets = [found[i].net for i in order]
    speed = stacked("speed", dtype)
    ends = np.append(np.asarray(speed), 0)[index]
    return Directions(
        speed=speed,
        net=jax.tree.map(lambda *w: jnp.stack(w), *nets) if nets else empty,
        count=jnp.asarray(np.bincount(index[index >= 0], minlength=len(order)), jnp.int32),
        converged=stacked("converged", bool),
        residual=stacked("residual", dtype),
        ranks=stacked("ranks", jnp.int32, depth),
        layer_norms=stacked("layer_norms", dtype, depth),
        imbalance=stacked("imbalance", dtype),
        kinks=stacked("kinks", jnp.int32, depth - 1),
        index=jnp.asarray(index, jnp.int32),
        all_speeds=jnp.asarray(np.where(index >= 0, ends, descent_speeds), dtype),
        descent_speeds=jnp.asarray(descent_speeds, dtype),
    )


def _summary(found: Directions) -> str:
    starts = len(found.index)
    widths = [found.net.in_size, *(w.shape[-2] for w in found.net.weights)]
    lines = [
        f"Escape directions of {'-'.join(map(str, widths))} nets from {starts} starts, "
        f"of which {round(found.dead_fraction * starts)} died",
        f"{'speed':>14} {'starts':>7} {'functions':>9}  {'residual':>8}  "
        f"{'kinks':<10} ranks",
    ]
    resting = np.asarray(found.converged)
    groups = levels(np.asarray(found.speed))
    for rows in groups[:_MAX_LINES]:
        ranks = sorted({_tuple(found.ranks[i]) for i in rows})
        moving = len(rows) - int(resting[rows].sum())
        lines.append(
            f"{float(found.speed[rows[0]]):14.10f} {int(found.count[rows].sum()):7d} "
            f"{len(rows):9d}  {float(found.residual[rows].max()):8.1e}  "
            f"{_tuple(found.kinks[rows[0]]):<10} {' '.join(ranks)}"
            f"{f'  {moving} not at rest' if moving else ''}"
        )
    if len(groups) > _MAX_LINES:
        lines.append(f"  … and {len(groups) - _MAX_LINES} slower speeds")
    return "\n".join(lines)


def _tuple(numbers: Array) -> str:
    return f"({','.join(str(int(n)) for n in numbers)})"
