"""What gradient flow conserves, at what rate the rest moves, and which units act alike.

Where gates are given, the velocity is minus the gradient under these gates.
"""

from collections.abc import Collection

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._numbers import check_number, is_threshold
from .._site_motion import at_units, equal_columns, motion
from .._trained_edges import trained_numbers
from .._types import Gates
from ..nets import AbstractNet, Dag, Invariant
from ..problem import Problem


Square = Float[Array, "units units"]


def invariants(net: AbstractNet) -> tuple[Invariant, ...]:
    r"""The quantities that gradient flow conserves on this architecture, for every
    differentiable loss, through crossings and slides.

    Of the units (channels) of a hidden layer, with $W_1$ all weights into them and $W_2$
    all weights out of them, $M = W_2^\top W_2 - W_1 W_1^\top$ (Le & Jegelka, Theorem 1):
    in full if they are linear; in blocks of equal signature if they are not (the first
    version claims all of M there, which is false); its diagonal alone if some connection
    is diagonal. Nothing is conserved of units with a constant weight in or out; but the
    difference of the norms of two cuts around them is (edge-wise, Lemma 3).
    """
    return net.conserved()


def invariant_rates(
    problem: Problem, net: AbstractNet, gates: Gates | None = None
) -> dict[str, Array]:
    """d/dt of the value of each of `invariants` along gradient flow: 0, up to rounding.

    Args:
        gates: by which each pre-activation is multiplied, (N, n_l) for each hidden layer;
            where neurons slide, those of `traj.kinks.gates` at a save. The activations' own
            if None.
    """
    velocity = motion(problem, net, gates).velocity
    return jax.jvp(_values, (net,), (velocity,))[1]


def gram_drift(
    problem: Problem, net: AbstractNet, gates: Gates | None = None
) -> dict[str, Square]:
    r"""dM/dt along gradient flow from what passes the units alone, of each of `invariants`
    in full or in blocks: 0 for units with equal gates.

    $$\frac{d}{dt} M_{uv} = \sum_i (D_{iu} - D_{iv})(g_{iu} z_{iv} - g_{iv} z_{iu})$$

    D are the gates, z pre-activations, $g = \partial R/\partial a$; i runs over samples and
    positions. Exact for every activation, and for sliding gates with their values. Le &
    Jegelka (first version, eq. 5) have 0 for all u and v.

    Args:
        gates: D, see `invariant_rates`.
    """
    here = motion(problem, net, gates)

    def drift(d: Array, g: Array, z: Array) -> Square:
        mixed = (d * g).T @ z - (d * z).T @ g
        return mixed + mixed.T

    return {
        m.name: drift(*(at_units(m, sites) for sites in (here.gates, here.signal, here.z)))
        for m in net.conserved()
        if m.form in ("full", "blocks")
    }


class GramVelocity(eqx.Module):
    r"""d/dt of the four Gram matrices of the weights around the units of a layer.

    For N samples and dense layers none has a rank above 2N (Le & Jegelka, Remark 1, has
    N = 1).

    Attributes:
        incoming: of $W_1 W_1^\top$, (units, units).
        outgoing: of $W_2^\top W_2$, (units, units).
        inputs: of $W_1^\top W_1$, (fan in, fan in).
        outputs: of $W_2 W_2^\top$, (fan out, fan out).
    """

    incoming: Square
    outgoing: Square
    inputs: Float[Array, "fan_in fan_in"]
    outputs: Float[Array, "fan_out fan_out"]

    def ranks(self, threshold: float = 1e-10) -> Int[Array, " grams"]:
        """The number of singular values of each above this part of its largest."""

        def rank(gram: Array) -> Array:
            s = jnp.linalg.svd(gram, compute_uv=False)
            return jnp.sum(s > threshold * s[0])

        grams = self.incoming, self.outgoing, self.inputs, self.outputs
        return jnp.stack([rank(gram) for gram in grams])


def gram_velocities(
    problem: Problem, net: AbstractNet, gates: Gates | None = None
) -> dict[str, GramVelocity]:
    """d/dt of the Gram matrices around each of `invariants`, along gradient flow.

    The difference `outgoing − incoming` is dM/dt, whatever its form.

    Args:
        gates: see `invariant_rates`.
    """
    velocity = motion(problem, net, gates).velocity

    def grams(net: AbstractNet) -> dict[str, GramVelocity]:
        return {
            m.name: GramVelocity(
                m.incoming @ m.incoming.T,
                m.outgoing.T @ m.outgoing,
                m.incoming.T @ m.incoming,
                m.outgoing @ m.outgoing.T,
            )
            for m in net.conserved()
            if m.form != "norms"
        }

    return jax.jvp(grams, (net,), (velocity,))[1]


def signatures(
    problem: Problem, net: AbstractNet, tolerance: float = 1e-9
) -> dict[str, Int[Array, " units"]]:
    """The class of each unit of `invariants` in full or in blocks: the first unit with the
    same gates on every sample, at every position. M is conserved within classes for as
    long as they last.

    A unit on a kink, where z is not 0 wherever θ is near, is alone: it may slide, with a
    gate that no other has. (Le & Jegelka count it as active, which leaves a gap in their
    Definition 6.)

    Args:
        tolerance: the largest |z| on a kink, relative to the layer's largest; 0 or more.

    Raises:
        TypeError, ValueError: unless the tolerance is a number of at least 0.
    """
    remedy = "must be 0 or more, such as 1e-9: how near to a kink is on it."
    check_number("tolerance", tolerance, is_threshold, remedy)
    x = problem.data.x
    z = net.preactivations(x)
    values = tuple(gate.value for gate in net.frozen_gates(x))
    dead = tuple(norms == 0 for norms in net.gradient_norms(x, values))

    def sides_of(z: Array, dead: Array) -> Array:
        size = jnp.where(jnp.abs(z) > tolerance * jnp.max(jnp.abs(z)), z, 0.0)
        return jnp.where(dead, -1.0, jnp.sign(size))

    sides = tuple(sides_of(*pair) for pair in zip(z, dead, strict=True))

    def classes(m: Invariant) -> Array:
        if m.form == "full":
            return jnp.zeros(len(m.incoming), int)
        side = at_units(m, sides)
        alike = equal_columns(side) & jnp.all(side != 0, axis=0)[:, None]
        return jnp.argmax(alike | jnp.eye(len(alike), dtype=bool), axis=1)

    return {m.name: classes(m) for m in net.conserved() if m.form in ("full", "blocks")}


def is_layer(net: Dag, edges: Collection[tuple[int, int]]) -> bool:
    """Whether every path from an input to an output meets exactly one of these edges.

    The layers of Le & Jegelka, for edge-wise invariance. Their definition (no path has two
    of them, and without them the graph falls apart) lets OUT of one of several inputs pass,
    for which that fails.

    Args:
        edges: some of `net.edges`, each (u, v).

    Raises:
        ValueError: on an edge that the graph does not have.
    """
    return net.path_counts(edges) == (1, 1)


def edge_balance(
    net: Dag, first: Collection[tuple[int, int]], second: Collection[tuple[int, int]]
) -> Float[Array, ""]:
    r"""$\sum_{e \in F} w_e^2 - \sum_{e \in F'} w_e^2$, conserved for layers F, F′ (Le &
    Jegelka, Lemma 3); a weight that edges share counts once.

    Args:
        first, second: the edges of F and F′, each a layer in the sense of `is_layer`.

    Raises:
        ValueError: if one of them is no layer, contains a constant, or has only some of
            the edges that share a weight.
    """
    return _square(net, first, "first") - _square(net, second, "second")


def _square(net: Dag, edges: Collection[tuple[int, int]], name: str) -> Array:
    if not is_layer(net, edges):
        least, most = net.path_counts(edges)
        raise ValueError(
            f"{name} is not a layer: paths meet {least} to {most} of its edges, and each "
            "must meet exactly one."
        )
    return jnp.sum(net.values[trained_numbers(net, edges, name)] ** 2)


def _values(net: AbstractNet) -> dict[str, Array]:
    return {m.name: m.value for m in net.conserved()}
