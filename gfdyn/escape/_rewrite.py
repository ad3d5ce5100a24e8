"""Nets rewritten: deeper at no loss of speed, or balanced with the same outputs."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..nets import MLP, check_mlp, norm, scaled_to_norm
from ..problem import Problem, check_fit


_MAX_SWEEPS = 10_000


def deepen(problem: Problem, net: MLP, k: int) -> MLP:
    r"""A net of depth L + k on its sphere, ‖θ̃‖² = L + k, that escapes at least as fast as
    `net` does: $\mathcal L_0(\tilde\theta) \le \mathcal L_0(\rho)$ if that is negative.

    Of the neurons i of the last hidden layer the one whose normalised path
    $\langle G, \bar W_{L,\cdot i}\,\sigma(\bar W_{L-1,i\cdot}\,\cdot)\rangle$ is most
    negative is given the weight $m = \sum_i \|W_{L,\cdot i}\|\|W_{L-1,i\cdot}\|$ of all of
    them, √m on either side; k layers between pass it on unchanged. So all layers from L−1
    on have rank one, already for k = 0.

    Bantzis et al., Prop. 3.2 = A.3, for ρ = √L θ/‖θ‖. They print ‖θ̃‖² = L + k, and their
    net has ≤; here it is scaled up to equality, which lowers L₀ where it is negative.
    Columns there are rows of the data here.

    Args:
        net: of depth L ≥ 2, at any scale.
        k: how many layers to add, 0 or more.

    Raises:
        TypeError: if `net` is no MLP, or `k` no integer.
        ValueError: if k < 0, if there is no hidden layer (the speed may fall from L = 1 to
            2), if its last activation is neither ReLU nor the identity and k > 0, or if net
            and problem do not fit.
    """
    check_mlp(net)
    check_fit(problem, net)
    _check_deepening(net, k)
    *first, incoming, outgoing = scaled_to_norm(net, math.sqrt(net.degree)).weights
    entering = problem.data.x
    for w, sigma in zip(first, net.activations[:-1], strict=True):
        entering = sigma(entering @ w.T)
    passing = net.activations[-1]

    rows, columns = _directions(incoming), _directions(outgoing.T)
    paths = passing(entering @ rows.T) * (problem.cost_gradient_at_zero @ columns.T)
    products = jnp.linalg.norm(incoming, axis=1) * jnp.linalg.norm(outgoing, axis=0)
    # A neuron that is dead on either side is no path.
    best = jnp.argmin(jnp.where(products > 0, jnp.sum(paths, axis=0), jnp.inf))
    root = jnp.sqrt(jnp.sum(products))

    width = incoming.shape[0]
    between = jnp.zeros((width, width), root.dtype).at[0, 0].set(1.0)
    weights = (
        *first,
        jnp.zeros_like(incoming).at[0].set(root * rows[best]),
        *[between] * k,
        jnp.zeros_like(outgoing).at[:, 0].set(root * columns[best]),
    )
    deeper = MLP.from_weights(weights, (*net.activations, *[passing] * k))
    return scaled_to_norm(deeper, math.sqrt(net.degree + k))


def rebalance(net: MLP, tolerance: float | None = None) -> MLP:
    r"""The net of least norm among those that rescale its neurons: the same outputs, every
    neuron balanced, $\|W_{l,i\cdot}\| = \|W_{l+1,\cdot i}\|$.

    Every hidden neuron is scaled in turn, $W_{l,i\cdot}$ by a and $W_{l+1,\cdot i}$ by 1/a,
    sweep after sweep, until the two norms of each agree. No step raises ‖θ‖. Summed over a
    layer, balance gives ‖W_l‖_F = ‖W_{l+1}‖_F: all layers get one Frobenius norm, as at
    every escape direction (Bantzis et al., after Def. 2.1). A neuron without incoming or
    without outgoing weights contributes nothing, and loses those it has.

    Not differentiable in reverse mode.

    Args:
        tolerance: on the difference of a neuron's two norms, relative to their sum; ten
            times the precision of the dtype if None.

    Raises:
        TypeError: if `net` is no MLP.
        ValueError: on a stack of nets, or unless the tolerance is positive.
        RuntimeError: (equinox's) if neurons are out of balance by more than the tolerance
            after 10 000 sweeps, where some are all but cut off from the others.
    """
    balanced, reached = nearly_balanced(net, tolerance)
    checked: Any = eqx.error_if(
        balanced,
        ~reached,
        f"rebalance: neurons are not balanced to the tolerance after {_MAX_SWEEPS} sweeps; "
        "pass a larger tolerance=.",
    )
    return checked


def nearly_balanced(
    net: MLP, tolerance: float | None = None
) -> tuple[MLP, Bool[Array, ""]]:
    """The net as far balanced as `rebalance` gets, and whether that is to the tolerance.

    Raises:
        TypeError, ValueError: as `rebalance`.
    """
    check_mlp(net)
    precision = float(jnp.finfo(net.weights[0].dtype).eps)
    tolerance = 10 * precision if tolerance is None else tolerance
    if not tolerance > 0:
        raise ValueError(
            f"tolerance={tolerance} must be positive: neurons are balanced up to rounding "
            "at best, 1e-14 in float64."
        )
    sizes = jnp.stack([norm(w) for w in net.weights])
    alive = jnp.all(sizes > 0)
    # In range from here on, and the layers balanced but for what neurons add.
    unit = tuple(
        w / jnp.where(alive, s, 1) for w, s in zip(net.weights, sizes, strict=True)
    )

    def going(carry: tuple[tuple[Array, ...], Array]) -> Array:
        weights, sweeps = carry
        return (_imbalance(weights) > tolerance) & (sweeps < _MAX_SWEEPS)

    def sweep(
        carry: tuple[tuple[Array, ...], Array],
    ) -> tuple[tuple[Array, ...], Array]:
        weights, sweeps = carry
        return _sweep(weights), sweeps + 1

    weights, _ = jax.lax.while_loop(going, sweep, (unit, jnp.asarray(0, jnp.int32)))
    reached = _imbalance(weights) <= tolerance
    mean = jnp.exp(jnp.mean(jnp.log(jnp.where(alive, sizes, 1))))
    common = jnp.where(alive, mean, 0)
    balanced = MLP.from_weights([common * w for w in weights], net.activations)
    return balanced, reached


def _check_deepening(net: MLP, k: Any) -> None:
    if not isinstance(k, int):
        raise TypeError(f"k={k!r} must be an integer, the number of layers to add.")
    if k < 0:
        raise ValueError(f"k={k} must be at least 0: layers are added, not removed.")
    if net.degree < 2:
        raise ValueError(
            "net has one weight matrix and no hidden layer; deepening it may cost speed, "
            "start from two matrices."
        )
    passing = net.activations[-1]
    if k and passing.slope not in (0.0, 1.0):
        raise ValueError(
            f"net has the last activation {passing.name!r}, which layers put behind it "
            "would apply again; use 'relu' or 'identity' there, or k=0."
        )


def _directions(rows: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """Each row over its norm; rows of zeros stay."""
    lengths = jnp.linalg.norm(rows, axis=1, keepdims=True)
    return rows / jnp.where(lengths > 0, lengths, 1)


def _sweep(weights: tuple[Array, ...]) -> tuple[Array, ...]:
    """Every hidden neuron balanced once, layers upward and then downward."""
    found = list(weights)
    hidden = range(len(found) - 1)
    for layer in (*hidden, *reversed(hidden)):
        incoming, outgoing = _norms(found, layer)
        alive = (incoming > 0) & (outgoing > 0)
        ratio = jnp.where(alive, outgoing, 1) / jnp.where(alive, incoming, 1)
        factor = jnp.sqrt(ratio)
        found[layer] = found[layer] * jnp.where(alive, factor, 0)[:, None]
        found[layer + 1] = found[layer + 1] * jnp.where(alive, 1 / factor, 0)[None, :]
    return tuple(found)


def _imbalance(weights: tuple[Array, ...]) -> Float[Array, ""]:
    """The largest difference of a neuron's two norms, over their sum."""
    worst = jnp.zeros((), weights[0].dtype)
    for layer in range(len(weights) - 1):
        incoming, outgoing = _norms(weights, layer)
        total = incoming + outgoing
        gaps = jnp.abs(outgoing - incoming) / jnp.where(total > 0, total, 1)
        worst = jnp.maximum(worst, jnp.max(gaps))
    return worst


def _norms(weights: Any, layer: int) -> tuple[Array, Array]:
    """The norms of the incoming and of the outgoing weights of each neuron."""
    return (
        jnp.linalg.norm(weights[layer], axis=1),
        jnp.linalg.norm(weights[layer + 1], axis=0),
    )
