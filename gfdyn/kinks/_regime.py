"""The law at kinks: rates, multipliers, and what may leave, of a regime.

**The law.** The exact flow is the limit of gradient descent as its step falls. Blown up at
a point, the network is linear but at the sites whose pre-activation is 0 there: these pass
max(p, 0) of their rate p. With x the rates that the parameters alone give them, and q what
they pass,

    p = x + W q,   q = max(p, 0),     x = rate − G μ,   μ = λ c,   c = signal + Wᵀ μ,

for gates λ: G is the Gram matrix of the normals ∂z/∂θ, W what arrives at sites above from
those below, both with all gates at kinks closed. Gradient descent descends

    Φ(d) = R'(θ; d) + ‖d‖²/2,

and a regime is right if its velocity is a local minimum of Φ. There λ is 1 where p > 0 and
0 where p < 0; where p = 0 the site slides, and its multiplier ν = λ c holds it there. To
move on along a direction in which sliding sites get rates p changes Φ by

    Ψ(p) = Σ c max(p, 0) − ν p  ≥ 0,

which for a kink of its own says 0 ≤ ν ≤ c: its gate is in range, and its signal positive.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int8

from .._numerics import nonzero
from ._in_range import InRange, in_range
from ._letting_go import LettingGo, signals_under
from ._normals import Held, Row, Square, holding, parallel_angle
from ._slots import OFF, ON, SLIDING
from ._tangent import TangentNetwork


# Ψ of what is not below other sliding sites counts so much more in that, so that what is
# below is let go first.
_FIRM = 30.0
# The square of a normal's length is rounding below this part of what it is a sum of, in
# units of the precision.
_NO_LENGTH = 1e3


class KinkRegime(eqx.Module):
    """The flow with given sites on and sliding: rates, multipliers, and what may leave.

    `stays` says which sites that are on move only as sliding ones do: these slide, too.
    `opens` and `closes` are Ψ where a kink is let go to either side, with all sites that
    share it, at one of these; `parts_open` and `parts_closed` where a site is let go from
    others that share its kink, as one below pushes them apart; ∞ elsewhere. `below` says
    which kinks are below others that slide, `stacked` which are below or above such, or
    below what hangs on several; `sways` which of these descent does not let go, though
    Ψ < 0.
    """

    state: Int8[Array, " sites"]
    stays: Bool[Array, " sites"]
    rate: Row
    nu: Row
    signal: Row
    opens: Row
    closes: Row
    parts_open: Row
    parts_closed: Row
    shares: Square
    below: Bool[Array, " sites"]
    stacked: Bool[Array, " sites"]
    sways: Bool[Array, " sites"]
    # The sliding ones, among normals with gates below as they are
    held: Held
    # Ψ that is rounding at each site
    psi_rounding: Row

    @property
    def least(self) -> Row:
        """The least Ψ by which each site may be let go."""
        kinks = jnp.minimum(self.opens, self.closes)
        return jnp.minimum(kinks, jnp.minimum(self.parts_open, self.parts_closed))

    @property
    def room(self) -> Row:
        """How far each sliding site is from being let go; those that sway are not."""
        return jnp.where(self.sways, jnp.inf, self.least + self.psi_rounding)

    @property
    def repels(self) -> Bool[Array, " sites"]:
        """The sites whose kinks are left to both sides, Ψ < 0 not by rounding of what it is
        on the other side alone."""
        less = jnp.minimum(self.opens, self.closes)
        more = jnp.maximum(self.opens, self.closes)
        return more < jnp.sqrt(jnp.finfo(less.dtype).eps) * less

    @property
    def let_go(self) -> Int8[Array, " sites"]:
        """The state once what is out of range is let go, each to the side that descends: at
        the rates at which these go, none of the others moves. If both sides descend, to
        that on which its gate stood for longer: Ψ is (1 - λ) c if it opens, λ c if not."""
        room = self.room
        kept = jnp.isinf(room) | jnp.all(room >= 0)
        opens = jnp.where(kept, 0.0, jnp.minimum(self.opens, 0.0))
        closes = jnp.where(kept, 0.0, jnp.minimum(self.closes, 0.0))
        up = jnp.where(self.repels, opens > closes, opens < closes)
        away = jnp.where(up, -opens, closes)
        away = jnp.where(self.below, away, _FIRM**2 * away)
        apart = jnp.minimum(self.parts_closed, 0.0) - jnp.minimum(self.parts_open, 0.0)
        p = self.shares.T @ away + _FIRM**2 * jnp.where(kept, 0.0, apart)
        # Where kinks are all but parallel one may part from others at a small part of the
        # rate at which these are left: what is no part of the way is rounding alone.
        small = jnp.sqrt(jnp.finfo(p.dtype).eps) * jnp.max(jnp.abs(p))
        return jnp.where(p > small, ON, jnp.where(p < -small, OFF, self.state))


def _none(there: KinkRegime) -> Bool[Array, " sites"]:
    return jnp.zeros_like(there.below)


def regime(
    t: TangentNetwork,
    state: Int8[Array, " sites"],
    swaying: Callable[[KinkRegime], Bool[Array, " sites"]] = _none,
) -> KinkRegime:
    """What follows from a state of the sites; `swaying` tells which of those with Ψ < 0
    descent does not let go: the multipliers are those under which least of the Ψ of others
    is negative."""
    opened = t.present & (state == ON)
    through, rising, gram = passing = _through(t, opened)
    # What moves only with others at kinks below follows these; it rests, off, if they do.
    hangs = _vanishing(t, through, gram)
    on = opened & ~hangs
    sliding = t.present & (state == SLIDING) & ~hangs
    through, rising, gram = jax.lax.cond(
        jnp.any(on != opened), lambda: _through(t, on), lambda: passing
    )
    # Without a normal there is no rate, either.
    gram = jnp.where(hangs[:, None] | hangs[None, :], 0.0, gram)
    base = jnp.where(on, t.signal, 0.0)
    given = jnp.where(hangs, 0.0, through @ t.rate) - gram @ base
    held = holding(gram, sliding)
    nu = held.multipliers(given)
    rate = given - gram @ nu
    # Multipliers have the rounding of the rates that they hold.
    psi_rounding = t.rounding / nonzero(jnp.diagonal(gram))
    still = t.present & (sliding | (jnp.abs(rate) <= t.rounding))
    # What moves only as sliding ones do slides with them, unless its kink repels. What else
    # is at rest, off, is moved by others alone: descent is left of it.
    resting = still & ~sliding & ~hangs
    along = jax.lax.cond(
        jnp.any(sliding) & jnp.any(resting),
        lambda: held.spans(resting),
        lambda: jnp.zeros_like(sliding),
    )
    shares = _shares(gram, still)
    joined = jnp.any((shares != 0) & sliding[None, :], axis=1)
    # All sites of a kink decide on whether it attracts.
    attracts = jnp.abs(shares) @ signals_under(t, through, base + nu)[1] >= 0
    along = along & (joined | attracts)
    together = sliding | (along & ~on)
    rests = still & ~together & ~on
    letting_go = LettingGo(t, through, rising, base, shares, together, hangs, rests)
    below = letting_go.below
    weight = jnp.where(below, 1.0, _FIRM).astype(nu.dtype)
    weight = jnp.concatenate([weight, weight, *2 * [jnp.full_like(weight, _FIRM)]])

    def under(found: InRange, sways: Bool[Array, " sites"]) -> KinkRegime:
        opens, closes, parts_open, parts_closed = jnp.split(found.psi, 4)
        return KinkRegime(
            state=jnp.where(together, SLIDING, jnp.where(on, ON, OFF)),
            stays=along & on,
            # As under the smallest multipliers: what brings them into range moves nothing.
            rate=rate,
            nu=found.nu,
            signal=found.signal,
            opens=opens,
            closes=closes,
            parts_open=parts_open,
            parts_closed=parts_closed,
            shares=shares,
            below=below,
            stacked=letting_go.stacked,
            sways=sways,
            held=held,
            psi_rounding=psi_rounding,
        )

    def ranged(sways: Bool[Array, " sites"]) -> InRange:
        counts = jnp.where(jnp.tile(sways, 4), 0.0, weight)
        return in_range(letting_go, held, given, nu, counts, psi_rounding)

    def look(carry: tuple) -> tuple:
        _, sways, _ = carry
        found = ranged(sways)
        more = sways | swaying(under(found, sways))
        return found, more, jnp.any(more != sways)

    nothing = InRange(nu, nu, jnp.zeros_like(weight))
    start = nothing, jnp.zeros_like(sliding), jnp.asarray(True)
    found, sways, _ = jax.lax.while_loop(lambda carry: carry[2], look, start)
    return under(found, sways)


def _vanishing(t: TangentNetwork, through: Square, gram: Square) -> Bool[Array, " sites"]:
    """The sites that have no normal, but for rounding of what it is a sum of."""
    most = (jnp.abs(through) @ jnp.sqrt(jnp.diagonal(t.gram))) ** 2
    return jnp.diagonal(gram) <= _NO_LENGTH * jnp.finfo(gram.dtype).eps * most


def _through(t: TangentNetwork, on: Bool[Array, " sites"]) -> tuple[Square, Square, Square]:
    """What reaches each site of the rates of all, through those that are on; what each adds
    to those of others as it passes its own; and the Gram matrix of the normals with these
    open."""
    passed = jnp.where(on[None, :], t.passed, 0.0)
    unit = jnp.eye(len(on), dtype=passed.dtype)

    def stacked() -> tuple[Square, Square, Square]:
        through = jax.scipy.linalg.solve_triangular(
            unit - passed, unit, lower=True, unit_diagonal=True
        )
        return through, through @ t.passed, through @ t.gram @ through.T

    return jax.lax.cond(jnp.any(passed != 0), stacked, lambda: (unit, t.passed, t.gram))


def _shares(gram: Square, still: Bool[Array, " sites"]) -> Square:
    """The rate of each site as another moves off its kink; 0 where they do not share it."""
    own = jnp.where(jnp.diagonal(gram) > 0, jnp.diagonal(gram), 1.0)
    cosine = gram / jnp.sqrt(own[:, None] * own[None, :])
    parallel = jnp.abs(cosine) > 1 - 0.5 * parallel_angle(own.dtype) ** 2
    same = still[:, None] & still[None, :] & parallel

    def joined(carry: tuple) -> tuple:
        same, _ = carry
        return same.astype(own.dtype) @ same.astype(own.dtype) > 0, same

    # What shares a kink with the same site shares it, so that all of them decide alike.
    alone = same & jnp.eye(len(own), dtype=bool)
    same, _ = jax.lax.while_loop(
        lambda carry: jnp.any(carry[0] != carry[1]), joined, (same, alone)
    )
    return jnp.where(same, gram / own[:, None], 0.0)
