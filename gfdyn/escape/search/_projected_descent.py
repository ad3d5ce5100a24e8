"""Gradient descent of the localized risk on the sphere, as in Bantzis et al., section 4."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from ..._tracing import is_concrete
from ..._types import Count, Scalar
from ...diagnostics import direction
from ...nets import AbstractNet, norm, scaled_to_norm
from ...problem import Problem, check_fit


Rate = ArrayLike | Callable[[Count], ArrayLike]

_DEFAULT_SAVES = 100


class FallingRate(eqx.Module):
    r"""The rate $\delta_k = \delta_0 (1 - k/K)^p$ of K steps, falling to 0."""

    initial: Float[Array, ""]
    steps: Float[Array, ""]
    power: Float[Array, ""]

    def __init__(self, initial: ArrayLike, steps: ArrayLike, power: ArrayLike = 2.0):
        """δ₀, K and p; p = 1 falls linearly. Their values do not compile anew."""
        self.initial = jnp.asarray(initial, float)
        self.steps = jnp.asarray(steps, float)
        self.power = jnp.asarray(power, float)

    def __call__(self, step: Count) -> Scalar:
        """δ_k."""
        left = 1 - step.astype(self.steps.dtype) / self.steps
        return self.initial * jnp.maximum(left, 0) ** self.power


class Descent(eqx.Module):
    """Where a projected descent ended, and the speeds on the way.

    A stack of starts is a leading axis of `net` and `speeds`.

    Attributes:
        net: ρ at the end, ‖ρ‖² = L.
        steps: after how many steps the speed was measured, (saves,), from 0 to the end.
        speeds: s = −L₀(ρ) there, (saves,).
    """

    net: AbstractNet
    steps: Int[Array, " saves"]
    speeds: Float[Array, "*starts saves"]

    @property
    def speed(self) -> Float[Array, "*starts"]:
        """The speed at the end."""
        return self.speeds[..., -1]


def projected_descent(
    problem: Problem,
    net: AbstractNet,
    rate: Rate,
    steps: int,
    *,
    normalised: bool = False,
    save_every: int | None = None,
) -> Descent:
    r"""Projected gradient descent of the localized risk on the sphere ‖ρ‖ = √L:

    $$\rho_{k+1} = \sqrt L\,\frac{\rho_k - \eta_k \nabla\mathcal L_0(\rho_k)}
    {\|\rho_k - \eta_k \nabla\mathcal L_0(\rho_k)\|},$$

    from the direction of `net`: the method behind Bantzis et al., Figs. 2 and 6, who print
    neither η nor the number of steps. With `normalised` the step has the length η_k
    whatever the gradient: $P\nabla\mathcal L_0 / \|P\nabla\mathcal L_0\|$, P the projection
    on the tangent space, stands for $\nabla\mathcal L_0$. That gets deep nets off the
    plateau around a random start, where the gradient is tiny.

    σ'(0) = 0 here. At a constant rate ρ chatters about directions that stand on kinks, and
    ends O(η) short of their speed; let the rate fall to 0, or take the largest of `speeds`.

    Args:
        net: where it starts, or a stack of nets (a leading axis) that run side by side.
        rate: η, or a schedule `step -> η` such as `FallingRate(0.15, steps)`.
        steps: how many.
        normalised: whether steps have the length η.
        save_every: measure the speed each so many steps, and at the end; about 100 times in
            all if None.

    Raises:
        TypeError: if `net` is no gfdyn network.
        ValueError: on a net without a degree or that does not fit the problem, a rate that
            is not positive, or counts out of range.
    """
    check_fit(problem, net)
    if net.degree is None:
        raise ValueError(
            f"net is a {type(net).__name__} without a degree of homogeneity; it has no "
            "direction on the sphere of radius √L."
        )
    if steps < 1:
        raise ValueError(f"steps={steps} must be 1 or more.")
    if save_every is None:
        save_every = max(1, steps // _DEFAULT_SAVES)
    if not 1 <= save_every <= steps:
        raise ValueError(f"save_every={save_every} must lie between 1 and steps={steps}.")
    if not callable(rate):
        rate = jnp.asarray(rate, net.weights[0].dtype)
        if is_concrete(rate) and not (rate.ndim == 0 and rate > 0):
            raise ValueError(
                f"rate={rate} is no learning rate; give a positive number, or a schedule "
                "such as gf.escape.FallingRate(0.15, steps)."
            )
    counts = np.append(np.arange(0, steps, save_every), steps)
    saves = jnp.asarray(counts, jnp.int32)
    end, speeds = _descend(problem.localized(), net, rate, saves, normalised)
    return Descent(end, saves, speeds)


@eqx.filter_jit
def _descend(
    localized: Problem, net: AbstractNet, rate: Rate, saves: Array, normalised: bool
) -> tuple[AbstractNet, Float[Array, "*starts saves"]]:
    """The end, and the speeds at the saves, of each net of a stack or of a single one."""

    def portion(rho: AbstractNet, bounds: Any) -> tuple[AbstractNet, Scalar]:
        begin, end = bounds
        rho = jax.lax.fori_loop(
            begin, end, lambda k, rho: _step(localized, rho, _at(rate, k), normalised), rho
        )
        return rho, -localized.risk(rho)

    def run(net: AbstractNet) -> tuple[AbstractNet, Array]:
        start = direction(localized, net)
        end, speeds = jax.lax.scan(portion, start, (saves[:-1], saves[1:]))
        return end, jnp.concatenate([-localized.risk(start)[None], speeds])

    with jax.default_matmul_precision("highest"):
        return (jax.vmap(run) if net.weights[0].ndim == 3 else run)(net)


def _at(rate: Any, step: Count) -> Array:
    return jnp.asarray(rate(step) if callable(rate) else rate)


def _step(localized: Problem, rho: AbstractNet, rate: Array, normalised: bool) -> Any:
    gradient = jax.grad(localized.risk)(rho)
    if normalised:
        gradient = _unit_tangent(rho, gradient)
    moved = jax.tree.map(lambda w, g: w - rate.astype(w.dtype) * g, rho, gradient)
    assert rho.degree is not None
    return scaled_to_norm(moved, math.sqrt(rho.degree))


def _unit_tangent(rho: AbstractNet, gradient: AbstractNet) -> AbstractNet:
    """The tangential part of the gradient over its norm; 0 where it is 0."""
    leaves, square = jax.tree.leaves, norm(rho) ** 2
    along = sum(jnp.sum(w * g) for w, g in zip(leaves(rho), leaves(gradient), strict=True))
    radial = along / jnp.where(square > 0, square, 1)
    tangent = jax.tree.map(lambda w, g: g - radial * w, rho, gradient)
    size = norm(tangent)
    return jax.tree.map(lambda v: v / jnp.where(size > 0, size, 1), tangent)
