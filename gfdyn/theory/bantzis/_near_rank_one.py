"""Inputs of rank nearly one, or a representation that is: so are all layers (Prop. 3.3).

Throughout, the matrix Z (N, n) that enters the layers after `layer` is taken apart as
v uᵀ + E with v ≥ 0; the paper has u vᵀ + X, transposed, and asks u ≥ 0 as well, in vain.
Layers are taken at ‖W_l‖_F = 1, which changes no tail: so s = −L₀ of those layers on Z,
whatever the scales of the net.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float

from ..._types import Scalar
from ...nets import MLP, norm
from ...problem import Problem
from .._check import Check, at_most
from ._quantities import (
    check_optimal_speed,
    hidden,
    is_relu,
    operator_norm,
    tails_after,
    unit_layers,
)


class _Split(eqx.Module):
    """The layers after one, of norm 1, and what enters them, v uᵀ + E."""

    net: MLP
    u: Float[Array, " width"]
    v: Float[Array, " samples"]
    # ‖G‖_F ‖E‖_F; ‖Gᵀv‖ ‖u‖, the best speed on v uᵀ; the speed of these layers
    loss: Scalar
    best: Scalar
    speed: Scalar
    rounding: Scalar

    @property
    def is_fast(self) -> Bool[Array, ""]:
        """Whether the layers are as fast on Z as Prop. 3.3 needs of a minimiser: all that
        its proof uses of optimality."""
        return self.speed >= self.best - self.loss - self.rounding


def near_rank_one_input(
    problem: Problem,
    net: MLP,
    layer: int = 0,
    u: ArrayLike | None = None,
    v: ArrayLike | None = None,
) -> Check:
    r"""After a representation of rank nearly one, all layers are, and nearly linear:

    $$\text{tail}(W_l),\ \text{tail}(Z_l^\sigma),\
    \frac{\|Z_l^\sigma - Z_l\|_F^2}{\|Z_l\|_F^2} \le
    \frac{8\,\|G\|_F\,\epsilon}{s - \|G\|_F\,\epsilon}, \qquad
    Z_{\text{layer}}^\sigma = v u^\top + E,\ \|E\|_F = \epsilon.$$

    Bantzis et al., Prop. 3.3 = A.5 (layer 0, the inputs), and their remark that it goes for
    every layer from one of rank nearly one on. They ask for the minimiser of L₀, of which
    their proof needs s ≥ ‖Gv‖‖u‖ − ‖G‖_F ε: the assumption `fast`, which is tested. They
    print a stray minus in (4), and −2/(‖u‖‖v‖) for + in what follows.

    Entries: tail(W_l), l > layer, then tail(Z_l^σ), then the nonlinearity, layer < l < L.
    Vacuous where the bound is 1 or more.

    Args:
        layer: the representation that is near v uᵀ: 0 for X, l for the l-th hidden layer.
        u, v: (n_layer,) and (N,); the nearest such matrix with v ≥ 0 that comes from the
            top singular pair, if None.

    Raises:
        TypeError, ValueError: if the net is no MLP, or does not fit the problem; unless
            0 ≤ layer < L, and u and v are of the shapes above, or None both.
    """
    split = _split(problem, net, layer, u, v)
    excess = split.speed - split.loss
    valid = excess > 0
    bound = jnp.where(valid, 8 * split.loss / jnp.where(valid, excess, 1), jnp.inf)
    units = unit_layers(problem, net)
    lhs = jnp.concatenate(tails_after(problem, units.net, layer))
    return at_most(
        lhs,
        bound,
        assumptions=_assumptions(split),
        vacuous=bound >= 1,
        slack=split.rounding / jnp.where(valid, excess, 1),
    )


def near_rank_one_speed(
    problem: Problem,
    optimal_speed: ArrayLike,
    u: ArrayLike,
    v: ArrayLike,
) -> Check:
    r"""$|s^* - \|Gv\|\,\|u\|| \le \|G\|_F\,\epsilon$ for inputs X = v uᵀ + E, ‖E‖_F = ε.

    Bantzis et al., proof of Prop. 3.3, for v ≥ 0. At ε = 0, s* = ‖Gv‖‖u‖ for every L ≥ 1,
    and any other speed violates it; at ε > 0 one that is further off than the bound. Gv is
    Gᵀv here, (k,).

    Args:
        optimal_speed: s* > 0, known or the best that was found.
        u, v: (d,) and (N,); `nonnegative` among the assumptions says whether v ≥ 0.

    Raises:
        ValueError: unless the speed is positive, and u and v have shapes (d,) and (N,).
    """
    check_optimal_speed(optimal_speed)
    x, g = problem.data.x, problem.cost_gradient_at_zero
    u, v = _vectors(x, u, v)
    best = norm(g.T @ v) * norm(u)
    return at_most(
        jnp.abs(jnp.asarray(optimal_speed, x.dtype) - best),
        norm(g) * norm(x - jnp.outer(v, u)),
        assumptions={"nonnegative": jnp.all(v >= 0)},
        slack=_rounding(x) * operator_norm(x) * norm(g),
    )


def near_rank_one_gain(
    problem: Problem,
    net: MLP,
    layer: int = 0,
    u: ArrayLike | None = None,
    v: ArrayLike | None = None,
) -> Check:
    r"""$1 - \frac{2\,\|G\|_F\,\epsilon}{\|Gv\|\,\|u\|} \le \frac{\|f(u)\|}{\|u\|} \le 1$ of
    the layers f after `layer`: on u they lose next to nothing. Two entries.

    Bantzis et al., proof of Prop. 3.3.

    Args:
        layer, u, v: see `near_rank_one_input`.

    Raises:
        TypeError, ValueError: see `near_rank_one_input`.
    """
    split = _split(problem, net, layer, u, v)
    size = norm(split.u)
    gain = norm(split.net(split.u[None, :])) / jnp.where(size > 0, size, 1)
    positive = split.best > 0
    least = 1 - 2 * split.loss / jnp.where(positive, split.best, 1)
    least = jnp.where(positive, least, -jnp.inf)
    one = jnp.ones_like(gain)
    fast = jnp.stack([split.is_fast, jnp.asarray(True)])
    return at_most(
        jnp.stack([least, gain]),
        jnp.stack([gain, one]),
        assumptions={**_assumptions(split), "fast": fast},
        vacuous=jnp.stack([least <= 0, jnp.asarray(False)]),
        slack=_rounding(gain) + split.rounding / jnp.where(positive, split.best, 1),
    )


def _assumptions(split: _Split) -> dict[str, Bool[Array, ""]]:
    return {
        "fast": split.is_fast,
        "nonnegative": jnp.all(split.v >= 0),
        "relu": is_relu(split.net),
    }


def _split(
    problem: Problem, net: MLP, layer: int, u: ArrayLike | None, v: ArrayLike | None
) -> _Split:
    units = unit_layers(problem, net)
    if not 0 <= layer < net.degree:
        raise ValueError(
            f"layer={layer} must lie in 0..{net.degree - 1}: 0 for the inputs, l for the "
            "hidden layer l."
        )
    if (u is None) != (v is None):
        raise ValueError("u and v belong together; give both or neither.")
    entering = hidden(problem, units.net)[layer - 1][1] if layer else problem.data.x
    if u is None or v is None:
        u, v = _nearest(entering)
    u, v = _vectors(entering, u, v)
    g = problem.cost_gradient_at_zero
    after = MLP.from_weights(units.net.weights[layer:], net.activations[layer:])
    return _Split(
        net=after,
        u=u,
        v=v,
        loss=norm(g) * norm(entering - jnp.outer(v, u)),
        best=norm(g.T @ v) * norm(u),
        speed=-jnp.sum(g * after(entering)),
        rounding=_rounding(entering) * operator_norm(entering) * norm(g),
    )


def _nearest(z: Float[Array, "samples width"]) -> tuple[Array, Array]:
    """(u, v): v the nonnegative part of the top singular vector, u what fits it best."""
    size = jnp.max(jnp.abs(z))
    scaled = z / jnp.where(size > 0, size, 1)
    top = jnp.linalg.svd(scaled, full_matrices=False)[0][:, 0]
    v = jnp.maximum(jnp.where(jnp.sum(top) < 0, -top, top), 0)
    square = jnp.sum(v**2)
    return z.T @ v / jnp.where(square > 0, square, 1), v


def _vectors(z: Array, u: ArrayLike, v: ArrayLike) -> tuple[Array, Array]:
    u, v = jnp.asarray(u, z.dtype), jnp.asarray(v, z.dtype)
    if u.shape != z.shape[1:] or v.shape != z.shape[:1]:
        raise ValueError(
            f"u has shape {u.shape} and v {v.shape}; they must be {z.shape[1:]} and "
            f"{z.shape[:1]}, for v uᵀ to have the shape of what enters, {z.shape}."
        )
    return u, v


def _rounding(like: Array) -> float:
    return 1000 * float(jnp.finfo(like.dtype).eps)
