"""The network blown up at a point: what is left of it are the sites at their kinks."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, Int8

from .._by_layer import in_layers, in_one_row, per_layer
from .._numerics import nonzero
from .._types import Mask, Scalar
from ..flows import AbstractFlow
from ..nets import AbstractNet, norm
from ._sites import GateState, HeldGate, constant, linearise, through_gates


# The states of a site
OFF, ON, SLIDING = np.int8(0), np.int8(1), np.int8(2)
# No state
NONE = np.int8(-1)

States = tuple[Int8[Array, "samples _"], ...]

# Values at sites at kinks, and at pairs of them
Row = Float[Array, " sites"]
Square = Float[Array, "sites sites"]

# So many sites at kinks are looked at together by default: in networks of up to so many.
_PLACES = ((1024, 64), (4096, 128))
# Places are worked on in blocks, those of which all are empty not at all.
BLOCK = 16
# ∂z/∂θ is rounding below this part of what it is with all gates open, in units of the
# precision: what only rounding moves has no kink.
_NO_NORMAL = 1e3
# What cancels as θ comes to rest leaves rounding, in units of the precision.
_CANCELLED = 64.0


class Slots(eqx.Module):
    """A fixed number of places for sites, counted in one row through the layers."""

    site: Int[Array, " slots"]
    present: Bool[Array, " slots"]
    sample: Int[Array, " slots"]
    # Of the sample's units in all hidden layers
    unit: Int[Array, " slots"]
    # Whether there were more sites than places
    overflow: Bool[Array, ""]

    def read(self, sites: tuple[Array, ...]) -> Array:
        """The values at these sites, those of empty places arbitrary."""
        return in_one_row(sites)[self.site]

    def write(self, values: Array, sites: tuple[Array, ...]) -> tuple[Array, ...]:
        """Values over all sites with those of these replaced."""
        row = in_one_row(sites)
        where = jnp.where(self.present, self.site, len(row))
        return in_layers(row.at[where].set(values, mode="drop"), sites)

    def mask(self, chosen: Bool[Array, " slots"], like: Mask) -> Mask:
        """The chosen ones of these sites."""
        nowhere = tuple(jnp.zeros_like(m) for m in like)
        return self.write(chosen, nowhere)


def states_of(on: Mask, sliding: Mask) -> States:
    """The state of each site, from which gates are on and which slide."""
    return per_layer(
        lambda o, slides: jnp.where(slides, SLIDING, jnp.where(o, ON, OFF)), on, sliding
    )


def no_alternative(gates: GateState) -> States:
    """That no site could go on in another state: the flow is unique."""
    return tuple(jnp.full(on.shape, NONE) for on in gates.on)


def places_among(sites: int, wanted: int | None = None) -> int:
    """How many places there are in a network of so many sites: as many as wanted, or by its
    size if None; in whole blocks, and not more than there are sites."""
    if wanted is None:
        wanted = next((n for most, n in _PLACES if sites <= most), _PLACES[-1][1])
    return BLOCK * -(-min(sites, wanted) // BLOCK)


def slots_of(mask: Mask, places: int) -> Slots:
    """So many places for the sites of a mask."""
    row = in_one_row(mask)
    (site,) = jnp.nonzero(row, size=places, fill_value=len(row))
    present = site < len(row)
    site = jnp.minimum(site, len(row) - 1)
    before, of_sample, of_unit = 0, [], []
    for m in mask:
        sample, unit = np.divmod(np.arange(m.size), max(m.shape[1], 1))
        of_sample.append(sample)
        of_unit.append(before + unit)
        before += m.shape[1]
    return Slots(
        site,
        present,
        jnp.asarray(np.concatenate(of_sample))[site],
        jnp.asarray(np.concatenate(of_unit))[site],
        jnp.sum(row) > places,
    )


def by_block(function: Callable[..., Any], *rows: Array) -> Any:
    """A function of some places, the last row whether they are taken, block by block; 0
    where none is."""
    blocks = [r.reshape(-1, BLOCK, *r.shape[1:]) for r in rows]
    shapes = jax.eval_shape(function, *(b[0] for b in blocks))
    empty = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

    def block(_: None, parts: tuple[Array, ...]) -> tuple[None, Any]:
        taken = jnp.any(parts[-1])
        return None, jax.lax.cond(taken, lambda: function(*parts), lambda: empty)

    _, found = jax.lax.scan(block, None, tuple(blocks))
    return jax.tree.map(lambda f: f.reshape(-1, *f.shape[2:]), found)


def gram_of(normals: Array, present: Array) -> Array:
    """⟨n_a, n_b⟩."""
    return by_block(lambda n, _: n @ normals.T, normals, present)


class Normals(eqx.Module):
    """∂z/∂θ of some sites, what arrives at others of what they pass, and the length below
    which a normal is rounding."""

    normals: Float[Array, "slots parameters"]
    passed: Float[Array, "slots slots"]
    rounding: Float[Array, " slots"]

    @property
    def lengths(self) -> Float[Array, " slots"]:
        """‖∂z/∂θ‖, 0 where that is rounding."""
        squares = jnp.sum(self.normals**2, axis=1)
        exists = squares > self.rounding**2
        return jnp.where(exists, jnp.sqrt(jnp.where(exists, squares, 1.0)), 0.0)


def normals_of(net: AbstractNet, x: Array, gates: GateState, slots: Slots) -> Normals:
    """The normals of the kinks of some sites under given gates."""

    def of_slot(sample: Array, unit: Array, present: Array) -> tuple[Array, Array]:
        on, frozen = ([m[sample][None] for m in part] for part in (gates.on, gates.frozen))
        row = x[sample][None]
        sizes = [m.shape[1] for m in gates.on]
        zeros = jnp.zeros(sum(sizes), x.dtype)
        bounds = np.cumsum([0, *sizes])

        def forward(net: AbstractNet, shift: Array) -> Array:
            held = [
                HeldGate(sigma, o, f, shift[None, a:b])
                for sigma, o, f, a, b in zip(
                    net.activations, on, frozen, bounds, bounds[1:], strict=False
                )
            ]
            return jnp.concatenate([z[0] for z in net.forward(row, held)[1]])

        chosen = jnp.where(present, jnp.zeros_like(zeros).at[unit].set(1.0), 0.0)
        _, pull = jax.vjp(lambda n: forward(n, zeros), net)
        _, above = jax.jvp(lambda s: forward(net, s), (zeros,), (chosen,))
        return ravel_pytree(pull(chosen)[0])[0], above

    normals, above = by_block(jax.vmap(of_slot), slots.sample, slots.unit, slots.present)
    together = slots.sample[:, None] == slots.sample[None, :]
    both = slots.present[:, None] & slots.present[None, :]
    passed = jnp.where(together & both, above[:, slots.unit].T, 0.0)
    open_norms = net.gradient_norms(x, tuple(jnp.ones(m.shape, x.dtype) for m in gates.on))
    rounding = _NO_NORMAL * jnp.finfo(x.dtype).eps * slots.read(open_norms)
    return Normals(normals, passed, constant(rounding))


def parallel_angle(dtype: Any) -> float:
    """Normals at less than this angle, ∛ε, count as parallel: to tell such kinks apart
    would take multipliers that are rounding alone."""
    return float(jnp.finfo(dtype).eps) ** (1 / 3)


class Held(eqx.Module):
    """Sites held on their kinks, and the Cholesky factor of their Gram matrix."""

    gram: Float[Array, "slots slots"]
    held: Bool[Array, " slots"]
    factor: Float[Array, "slots slots"]

    def multipliers(self, given: Float[Array, "slots ..."]) -> Float[Array, "slots ..."]:
        """ν with G ν = given at the sites held, 0 at others; the smallest where their
        normals depend on each other."""
        found = self.damped(given)
        # Once more, for what damping has left.
        return found + self.damped(given - self.gram @ found)

    def damped(self, given: Float[Array, "slots ..."]) -> Float[Array, "slots ..."]:
        """(G + damping)⁻¹ given at the sites held, 0 at others."""
        wanted = jnp.where(self.held, given.T, 0.0).T
        return jax.scipy.linalg.cho_solve((self.factor, True), wanted)

    def spans(self, asked: Bool[Array, " slots"]) -> Bool[Array, " slots"]:
        """The sites asked about whose normals lie in the span of those of the sites held,
        up to the angle at which normals count as parallel."""
        wanted = jnp.where(asked[None, :], self.gram, 0.0)
        parts = self.multipliers(wanted)
        own = jnp.diagonal(self.gram)
        rest = own - jnp.sum(jnp.where(self.held[:, None], wanted * parts, 0.0), axis=0)
        return asked & (rest <= parallel_angle(own.dtype) ** 2 * own)


def holding(
    gram: Float[Array, "slots slots"],
    held: Bool[Array, " slots"],
    damping: Row | None = None,
) -> Held:
    """Some sites held; what moves the diagonal of their normals' Gram matrix by less than
    `damping` counts as none: by default, what parallel normals may differ by."""
    pair = held[:, None] & held[None, :]
    if damping is None:
        damping = parallel_angle(gram.dtype) ** 2 * nonzero(jnp.diagonal(gram))
    damped = jnp.where(pair, gram, 0.0) + jnp.diag(jnp.where(held, damping, 1.0))
    return Held(gram, held, jnp.linalg.cholesky(damped))


class TangentNetwork(eqx.Module):
    """The sites at kinks, each in units in which its normal has length about 1.

    Attributes:
        gram: of the normals, times how fast θ moves for a unit of gradient, all gates at
            kinks closed.
        passed: W, what arrives at a site of what another passes once it is open.
        signal: what opening each gate adds to the gradient along its normal.
        rate: dz/dτ of each.
        present: which places are taken.
        terms: what `rate` is a sum of, ∑ᵢ |∂z/∂θᵢ| |dθᵢ/dτ|: less where θ moves fast
            elsewhere than where z depends on it, as in units much smaller than others.
        pulls: the same of the gradient alone, without what the flow takes away from it.
        astray: how far `rate` may be from what it is on the kink itself, as θ is off it.
        gain: how fast θ moves for a unit of gradient.
        layers: the number of hidden layers.
    """

    gram: Float[Array, "slots slots"]
    passed: Float[Array, "slots slots"]
    signal: Float[Array, " slots"]
    rate: Float[Array, " slots"]
    present: Bool[Array, " slots"]
    terms: Row
    pulls: Row
    astray: Row
    gain: Scalar
    layers: int = eqx.field(static=True)

    def first(self, places: int) -> "TangentNetwork":
        """The same of the first places alone."""
        return jax.tree.map(lambda a: a[(slice(places),) * a.ndim], self)

    @property
    def has_normal(self) -> Bool[Array, " slots"]:
        """The sites that the parameters alone move, with all gates at kinks closed."""
        return jnp.diagonal(self.gram) > 0

    @property
    def scale(self) -> Row:
        """How fast each site would move if nothing cancelled in its rate."""
        return self.terms + jnp.abs(self.gram) @ jnp.abs(self.signal)

    @property
    def rounding(self) -> Row:
        """Rates that are rounding: of what they are sums of, or of what cancels in that, or
        as sites are only near their kinks."""
        eps = jnp.finfo(self.terms.dtype).eps
        cancelled = _CANCELLED * eps * self.pulls
        return jnp.sqrt(eps) * self.scale + cancelled + self.astray

    @property
    def largest_signal(self) -> Scalar:
        """The largest |signal|, about as large as multipliers in range may be."""
        return jnp.max(jnp.where(self.present, jnp.abs(self.signal), 0.0))

    def weak(self, gram: Square, size: Row) -> Row:
        """By how much the length² of each normal may change and multipliers of a size, or
        in range, move nothing beyond rounding by that, or it counts as parallel to what
        it was."""
        angle = parallel_angle(gram.dtype)
        size = jnp.maximum(self.largest_signal, size)
        moved = self.rounding / jnp.where(size > 0, size, jnp.inf)
        return jnp.maximum(angle**2 * jnp.diagonal(gram), moved)


def tangent_network(
    flow: AbstractFlow,
    position: Any,
    gates: GateState,
    slots: Slots,
    certain: Bool[Array, " slots"],
    least: Scalar,
) -> TangentNetwork:
    """The network at a position, blown up at certain sites and at those others that could
    add as much as `least` to the velocity, with all that they carry; other gates as given.
    """
    flow, position, gates = constant((flow, position, gates))
    net, x = flow.point(position), flow.problem.data.x
    chosen = slots.mask(slots.present, gates.on)
    closed = GateState(
        tuple(o & ~c for o, c in zip(gates.on, chosen, strict=True)),
        gates.sliding,
        tuple(f | c for f, c in zip(gates.frozen, chosen, strict=True)),
    )
    at = linearise(net, x, closed)
    nothing = tuple(jnp.zeros_like(z) for z in at.z)
    gradient, signal = at.pullback(flow.cotangent(position, at.outputs), nothing)
    velocity = flow.assemble(position, at.outputs, gradient).position
    moves, _ = ravel_pytree(flow.point(velocity))
    pull, _ = ravel_pytree(gradient)
    found = normals_of(net, x, closed, slots)
    factor = slots.read(
        tuple(
            jnp.full_like(z, 1 - s.slope)
            for z, s in zip(at.z, net.activations, strict=True)
        )
    )
    passed = found.passed * factor[None, :]
    squares = found.lengths**2
    reached = squares
    for _ in range(len(gates.on) - 1):
        reached = squares + passed**2 @ reached
    length = jnp.sqrt(reached)
    gain = flow.gain(gradient)
    exists = slots.present & (length > found.rounding)
    size = jnp.where(exists, length, 1.0)
    passed = jnp.where(exists[:, None], passed * size[None, :] / size[:, None], 0.0)
    jump = jnp.where(exists, slots.read(through_gates(net, signal)) * size, 0.0)
    most = jnp.abs(jump)
    for _ in range(len(gates.on) - 1):
        most = jnp.abs(jump) + jnp.abs(passed).T @ most
    present = exists & (certain | (gain * most > least))
    has_normal = present & (squares > 0)
    normals = jnp.where(has_normal[:, None], found.normals / size[:, None], 0.0)
    pair = present[:, None] & present[None, :]
    # How fast θ turns, as an angle in time, if nothing cancels in the gradient.
    turning = gain * norm(gradient) / norm(net)
    return TangentNetwork(
        gram=gain * gram_of(normals, present),
        passed=jnp.where(pair, passed, 0.0),
        signal=jnp.where(present, jump, 0.0),
        rate=normals @ moves,
        present=present,
        terms=jnp.abs(normals) @ jnp.abs(moves),
        pulls=gain * jnp.abs(normals) @ jnp.abs(pull),
        astray=2 * turning * jnp.where(present, jnp.abs(slots.read(at.z)) / size, 0.0),
        gain=gain,
        layers=len(gates.on),
    )
