"""Stationarity where the risk has kinks: the smallest of its generalised gradients.

ReLU has no derivative at z = 0 but a set of them, the *gates* λ ∈ [slope, 1]. Gradient flow
moves by minus the least element of the Clarke subdifferential and rests where that is 0; ∇R
with σ'(0) = slope may be far from it there.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._by_layer import in_layers, in_one_row, per_layer
from .._types import Mask, Scalar, Sites
from ..nets import (
    AbstractNet,
    Coincidence,
    coinciding_kinks,
    joined,
    norm,
    passing_alone,
    with_ratios,
)
from ..problem import Problem, check_fit
from ._box import least_gradient


class Subgradient(eqx.Module):
    """A gradient of the risk under chosen gates, (N, n_l) for each hidden layer, its norm,
    and whether the search for the smallest one converged."""

    gradient: AbstractNet
    gates: Sites
    norm: Scalar
    converged: Bool[Array, ""]


def minimum_norm_subgradient(
    problem: Problem, net: AbstractNet, tolerance: float = 1e-6
) -> Subgradient:
    r"""The gradient of least norm over the gates λ of the kinks at which the net stands:

    $$\min_\lambda \|J_\lambda^\top \nabla C(f_\theta(X))\|, \qquad
    \lambda \in [\text{slope}, 1] \text{ where }
    |z| \le \text{tolerance} \, \|w\| \, \|\partial z/\partial\theta\|.$$

    J_λ is the derivative of the outputs under these gates, w the unit's weights, ∂z/∂θ is
    taken with all gates open. Other gates follow the sign of z. Kinks that coincide
    wherever θ is have one gate: those of samples that are positive multiples of each other,
    and in the first hidden layer those of antipodal ones, as λ and 1 + slope − λ. So have,
    in an `MLP`, samples that pass a layer through one and the same ReLU alone, in the
    layers above. Where no unit below lets a sample through, z is 0 and not at a kink: the
    gate is off.

    With one hidden layer the problem is convex. The result is the least element of the
    Clarke subdifferential, at almost all times minus the velocity of gradient flow (Ji &
    Telgarsky 2020, Lemma B.9; Le & Jegelka, section 2), if the samples at whose kinks a
    unit stands, one of each line, are linearly independent. If they are not, as at w = 0,
    their gates do not open independently near θ: the set searched contains the
    subdifferential, and the norm is a lower bound.

    With more, gates along a path multiply. As long as none turns the sign of the signal
    that arrives at another, the set is still convex and all this holds. Otherwise only its
    convex hull contains the subdifferential, and the result is a local minimum.

    Where gates make no difference they are some that do as well. Not to be differentiated.

    Args:
        tolerance: how far away a kink may be at which the net stands, relative to ‖w‖; in
            [0, 1), with 0 for z = 0 only.

    Raises:
        TypeError: if `net` is no gfdyn network.
        ValueError: unless 0 ≤ tolerance < 1, if net and problem do not fit, or for a
            wrapped model, which does not tell where it bends.
    """
    check_fit(problem, net)
    if not net.knows_kinks:
        raise ValueError(
            f"net is a {type(net).__name__} that does not tell where it bends, so that "
            "there is no telling its subdifferential; use gf.diagnostics.gradient_norm "
            "where it is smooth."
        )
    if not 0 <= tolerance < 1:
        raise ValueError(
            f"tolerance={tolerance} must be at least 0 and below 1, relative to a unit's "
            "weights: how exactly the net is on its kinks, such as 1e-6; 0 for z = 0 only."
        )
    x = problem.data.x
    outputs, z = net.forward(x, net.activations)
    cotangent = problem.cost_gradient(outputs)
    if not net.activations:
        gradient = jax.grad(problem.risk)(net)
        return Subgradient(gradient, (), norm(gradient), jnp.asarray(True))
    kinks = _kinks(net, x, z, tolerance)

    def pulled_back(opened: Sites) -> tuple[AbstractNet, Sites]:
        return _pullback(net, x, z, kinks.gates(net, opened), cotangent)

    def gradient_at(opened: Sites) -> tuple[AbstractNet, Sites]:
        gradient, signal = pulled_back(opened)
        return gradient, kinks.jumps(net, signal)

    halfway = tuple(jnp.full_like(zl, 0.5) for zl in z)
    gradient, signal = pulled_back(halfway)
    # The gradient is a sum over sites. At a saddle it is 0 but for what they round.
    largest = kinks.largest_part(signal)
    unit = jnp.maximum(norm(gradient), largest)
    opened, converged = least_gradient(gradient_at, halfway, unit)
    gradient, _ = gradient_at(opened)
    return Subgradient(gradient, kinks.gates(net, opened), norm(gradient), converged)


def subgradient_norm(problem: Problem, net: AbstractNet, tolerance: float = 1e-6) -> Scalar:
    """‖∂R(θ)‖, the norm of the `minimum_norm_subgradient`: 0 where gradient flow rests.

    `gradient_norm` takes σ'(0) = slope instead, and is not small at a limit on a kink.

    Args:
        tolerance: see `minimum_norm_subgradient`.

    Raises:
        TypeError: if `net` is no gfdyn network.
        ValueError: unless 0 ≤ tolerance < 1, or if net and problem do not fit.
    """
    return minimum_norm_subgradient(problem, net, tolerance).norm


# --- Kinks ----------------------------------------------------------------------------


class _Kinks(eqx.Module):
    """The sites with a gate to choose, the gates of the others, and who shares a kink."""

    free: Mask
    fixed: Sites
    # ‖∂z/∂θ‖ of each site
    slopes: Sites
    shared: Coincidence

    def gates(self, net: AbstractNet, opened: Sites) -> Sites:
        """The gates that stand this far between slope (0) and 1 (1) at first samples."""

        row = self.shared.of_first(in_one_row(opened))
        row = jnp.where(self.shared.ratio < 0, 1 - row, row)

        def of_layer(sigma, free, fixed, opened):
            return jnp.where(free, sigma.slope + (1 - sigma.slope) * opened, fixed)

        sites = self.free, self.fixed, in_layers(row, opened)
        return per_layer(of_layer, net.activations, *sites)

    def largest_part(self, signal: Sites) -> Scalar:
        """The largest of what sites, at kinks or not, bring to the gradient, about."""
        parts = per_layer(lambda q, c: jnp.max(jnp.abs(c) * q), self.slopes, signal)
        return jnp.max(jnp.stack(parts))

    def jumps(self, net: AbstractNet, signal: Sites) -> Sites:
        """How far opening each gate moves the gradient, about; 0 but at first samples."""

        def of_layer(sigma, free, size, c):
            return jnp.where(free, (1 - sigma.slope) * c * size, 0.0)

        sites = self.free, self.slopes, signal
        row = in_one_row(per_layer(of_layer, net.activations, *sites))
        return in_layers(jnp.abs(self.shared.summed(row)), signal)


def _kinks(net: AbstractNet, x: Array, z: Sites, tolerance: float) -> _Kinks:
    bounds = net.gradient_norms(x, tuple(jnp.ones_like(zl) for zl in z))

    def is_near(sigma, w, zl, bound):
        # A row of w is for one channel, at each position.
        sizes = jnp.linalg.norm(w, axis=1)
        size = jnp.tile(sizes, zl.shape[1] // len(sizes))[None, :] * bound
        return (jnp.abs(zl) <= tolerance * size) & (not sigma.is_linear)

    near = per_layer(is_near, net.activations, net.weights[:-1], z, bounds)
    passing = per_layer(lambda n, zl: n | (zl > 0), near, z)
    alone = passing_alone(net, passing)
    shared = with_ratios(joined(coinciding_kinks(net, x), alone), alone, z)
    near = in_layers(shared.of_first(in_one_row(near)), near)

    def sizes(opened):
        def value(sigma, near, zl):
            return jnp.where(near, 1.0 if opened else sigma.slope, sigma.gate(zl))

        return net.gradient_norms(x, per_layer(value, net.activations, near, z))

    largest = sizes(opened=True)
    alive = per_layer(lambda n, q: n & (q > 0), near, largest)
    own = per_layer(lambda n, q: n & (q > 0), near, sizes(opened=False))
    rises, falls = _awakened(net, x, alive, own)
    free = per_layer(lambda a, o, r, f: a & (o | (r & f)), alive, own, rises, falls)

    def value(sigma, near, alive, rises, zl):
        awake = jnp.where(alive & rises, 1.0, sigma.slope)
        return jnp.where(near, awake, sigma.gate(zl))

    fixed = per_layer(value, net.activations, near, alive, rises, z)
    return _Kinks(free, fixed, largest, shared)


def _awakened(net: AbstractNet, x: Array, alive: Mask, own: Mask) -> tuple[Mask, Mask]:
    """Whether z becomes positive, and negative, as gates at kinks below it open, for the
    samples that pass through no others. Such a z has no kink of its own: it is 0 wherever θ
    is while they are closed, and has a sign as soon as one opens."""

    def opening(alive, own):
        return lambda z: (own | (alive & (z > 0))).astype(z.dtype)

    positive = jax.tree.map(lambda w: jnp.maximum(w, 0), net)
    negative = jax.tree.map(lambda w: jnp.minimum(w, 0), net)
    gates = per_layer(opening, alive, own)
    rising = positive.forward(x, gates)[1]
    passed = per_layer(lambda gate, z: lambda _: gate(z), gates, rising)
    falling = negative.forward(x, passed)[1]
    return per_layer(lambda z: z > 0, rising), per_layer(lambda z: z < 0, falling)


class _Tangent(eqx.Module):
    """z → a + gate · (z − z₀): the value of the activation, the derivative `gate`."""

    a: Float[Array, "samples width"]
    z0: Float[Array, "samples width"]
    gate: Float[Array, "samples width"]

    def __call__(self, z: Float[Array, "samples width"]) -> Float[Array, "samples width"]:
        return self.a + self.gate * (z - self.z0)


def _pullback(
    net: AbstractNet, x: Array, z: Sites, gates: Sites, cotangent: Array
) -> tuple[AbstractNet, Sites]:
    """The gradient under these gates, and the signal that arrives at each activation."""

    def outputs(net, values):
        return net.forward(x, per_layer(_Tangent, values, z, gates))[0]

    values = per_layer(lambda sigma, zl: sigma(zl), net.activations, z)
    return jax.vjp(outputs, net, values)[1](cotangent)
