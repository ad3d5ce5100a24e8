"""The decision at a kink: which sites are on, off or sliding next.

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

**Three outcomes.** A site that reaches its kink *crosses* if beyond it the flow leads on,
*slides* if it leads back; and a site that slides is *let go* where Ψ turns negative: opened
if ν > c, closed if ν < 0, and where both hold the kink has turned from attracting to
repelling: the flow is not unique, and the gate closes. Sites that share a kink are opened
and closed together, by the sign of their part in it. Where a site opens below others that
share their kinks, these part from it or go with it, whichever lowers Ψ.

**Below others that slide** Ψ < 0 is not enough. Gates of a sample sway together: while the
lower site is on, the upper one is on more often than on the average, or less, so that
the signal c that the lower one meets is not the mean one. What descent does is played.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Int8

from ._apart import Surroundings, let_go
from ._play import play
from ._tangent import OFF, ON, SLIDING, Row, Square, TangentNetwork, holding


# Proposals before gradient descent is played, and after each time that it was.
_PROPOSALS = 6
_PLAYS = 4
# Rounds of the first play, and how many times as many each further one has; of one that
# tells whether a site sways to the end.
_ROUNDS, _LONGER = 400, 3
_LONG = 10_000


class KinkRegime(eqx.Module):
    """The flow with given sites on and sliding: rates, multipliers, and what may leave.

    `opens` and `closes` are Ψ where the kink of a site is let go to either side, ∞ at sites
    that do not slide; `apart` is the rates of all sites as it opens and as it closes;
    `below` says which kinks are below others that slide.
    """

    state: Int8[Array, " sites"]
    rate: Row
    nu: Row
    signal: Row
    opens: Row
    closes: Row
    apart_open: Square
    apart_closed: Square
    below: Bool[Array, " sites"]

    def room(self, sways: Bool[Array, " sites"]) -> Row:
        """How far each sliding site is from being let go; those that sway are not."""
        return jnp.where(sways, jnp.inf, jnp.minimum(self.opens, self.closes))

    def own_rate(self, t: TangentNetwork) -> Row:
        """The rates that the parameters alone give all sites, x = rate − G μ."""
        return t.rate - t.gram @ (self.nu + jnp.where(self.state == ON, self.signal, 0.0))

    def after_leaving(self, site: Int[Array, ""]) -> Int8[Array, " sites"]:
        """The state once the kink of a site is let go, to the side that descends."""
        opening = (self.opens[site] < self.closes[site]) & (self.closes[site] >= 0)
        p = jnp.where(opening, self.apart_open[site], self.apart_closed[site])
        return moved_apart(self.state, p)


def moved_apart(state: Int8[Array, " sites"], p: Row) -> Int8[Array, " sites"]:
    """The state as sites at kinks get rates p; those with none stay as they are."""
    small = jnp.sqrt(jnp.finfo(p.dtype).eps)
    return jnp.where(p > small, ON, jnp.where(p < -small, OFF, state))


def regime(t: TangentNetwork, state: Int8[Array, " sites"]) -> KinkRegime:
    """What follows from a state of the sites."""
    on = t.present & (state == ON)
    # What moves only with others at kinks below follows these; it rests, off, if they do.
    hangs = _vanishing(t, _through(t, on)[1])
    on = on & ~hangs
    sliding = t.present & (state == SLIDING) & ~hangs
    through, gram = _through(t, on)
    own = jnp.diagonal(gram)
    given = through @ t.rate - gram @ jnp.where(on, t.signal, 0.0)
    nu = holding(gram, sliding, given)
    rate = given - gram @ nu
    mu = through.T @ (jnp.where(on, t.signal, 0.0) + nu)
    signal = t.signal + t.passed.T @ mu
    still = t.present & (sliding | (jnp.abs(rate) <= t.rounding))

    shares = _shares(t, gram, still, hangs)
    # What is at rest, off, is moved by others alone: gradient descent is left of its kink.
    slides = jnp.any((shares != 0) & sliding[None, :], axis=1)
    together = sliding | (slides & still)
    leader = slides & (jnp.argmax(shares != 0, axis=1) == jnp.arange(len(own)))
    rising = through @ t.passed
    around = Surroundings(rising, shares, mu, signal, on, hangs, still, t.layers)
    opens, closes, apart_open, apart_closed = let_go(around, leader)
    reached = jnp.any((rising != 0) & together[:, None], axis=0)
    infinite = jnp.full_like(opens, jnp.inf)
    return KinkRegime(
        state=jnp.where(together, SLIDING, jnp.where(on, ON, OFF)),
        rate=rate,
        nu=nu,
        signal=signal,
        opens=jnp.where(leader, opens, infinite),
        closes=jnp.where(leader, closes, infinite),
        apart_open=apart_open,
        apart_closed=apart_closed,
        below=leader & jnp.any((shares != 0) & reached[None, :], axis=1),
    )


def _vanishing(t: TangentNetwork, gram: Square) -> Bool[Array, " sites"]:
    """The sites that have no normal."""
    return jnp.diagonal(gram) <= 1e3 * jnp.finfo(gram.dtype).eps * t.gain


def _through(t: TangentNetwork, on: Bool[Array, " sites"]) -> tuple[Square, Square]:
    """What reaches each site of the rates of all, through those that are on; and the Gram
    matrix of their normals with these open."""
    passed = jnp.where(on[None, :], t.passed, 0.0)
    unit = jnp.eye(len(on), dtype=passed.dtype)

    def stacked() -> tuple[Square, Square]:
        through = jax.scipy.linalg.solve_triangular(
            unit - passed, unit, lower=True, unit_diagonal=True
        )
        return through, through @ t.gram @ through.T

    return jax.lax.cond(jnp.any(passed != 0), stacked, lambda: (unit, t.gram))


def _shares(
    t: TangentNetwork,
    gram: Square,
    still: Bool[Array, " sites"],
    hangs: Bool[Array, " sites"],
) -> Square:
    """The rate of each site as another moves off its kink; 0 where they do not share it."""
    own = jnp.where(hangs, 1.0, jnp.diagonal(gram))
    own = jnp.where(own > 0, own, 1.0)
    cosine = gram / jnp.sqrt(own[:, None] * own[None, :])
    parallel = jnp.abs(cosine) > 1 - 1e3 * jnp.finfo(own.dtype).eps ** (3 / 4)
    pair = (still & ~hangs)[:, None] & (still & ~hangs)[None, :]
    same = pair & parallel & (t.unit[:, None] == t.unit[None, :])
    return jnp.where(same, gram / own[:, None], 0.0)


class Decision(eqx.Module):
    """The state of each site next, and whether it was verified."""

    state: Int8[Array, " sites"]
    verified: Bool[Array, ""]


def decide(
    t: TangentNetwork,
    proposal: Int8[Array, " sites"],
    start: Row,
    playing: Bool[Array, ""],
) -> Decision:
    """The regime in which gradient descent settles, from a proposal.

    What is wrong with a proposal makes the next one. Where none is right soon, or several
    may be (`playing`), gradient descent is played, from `start` (`play`).
    """
    period = _PROPOSALS + 1
    last = _PLAYS * period + _PROPOSALS

    def going(carry: tuple) -> Array:
        *_, verified, attempt = carry
        return ~verified & (attempt <= last)

    def attempt(carry: tuple) -> tuple:
        state, _, number = carry
        plays = number % period == _PROPOSALS
        rounds = _ROUNDS * _LONGER ** (number // period)

        def played() -> tuple:
            return play(t, start, rounds, t.present).state, jnp.asarray(False)

        def proposed() -> tuple:
            there = regime(t, state)
            after = _next(t, there, number % period >= _PROPOSALS // 2)
            return after, jnp.all(after == there.state)

        return *jax.lax.cond(plays, played, proposed), number + 1

    number = jnp.where(playing, _PROPOSALS, 0)
    carry = (proposal, jnp.asarray(False), number)
    state, verified, _ = jax.lax.while_loop(going, attempt, carry)
    return Decision(state, verified)


def _next(
    t: TangentNetwork, there: KinkRegime, singly: Bool[Array, ""]
) -> Int8[Array, " sites"]:
    """The state with what is wrong with it changed, the worst of it alone if `singly`.

    A site whose rate leads to its other side goes there if it would go on there, and slides
    if it would come back; a sliding one with Ψ < 0 is let go.
    """
    on, off = there.state == ON, there.state == OFF
    rate = there.rate
    wrong = t.present & jnp.where(on, rate < -t.rounding, off & (rate > t.rounding))
    own_flip = jnp.diagonal(t.gram) * there.signal
    beyond = jnp.where(on, rate + own_flip, rate - own_flip)
    leads_on = jnp.where(on, beyond < 0, beyond > 0)
    sways = swaying(t, there, ~jnp.any(wrong))
    gained = -t.gain * there.room(sways)
    leaving = gained > t.rounding
    badness = jnp.where(wrong, jnp.abs(rate), jnp.where(leaving, gained, 0.0))
    worst = jnp.arange(len(rate)) == jnp.argmax(badness)
    wrong, leaving = (m & (worst | ~singly) for m in (wrong, leaving))
    other = jnp.where(on, OFF, ON)
    state = jnp.where(wrong, jnp.where(leads_on, other, SLIDING), there.state)

    def gone(i: Int[Array, ""], state: Array) -> Array:
        site = order[i]
        after = there.after_leaving(site)
        return jnp.where(after != there.state, after, state)

    order = jnp.argsort(~leaving, stable=True)
    return jax.lax.fori_loop(0, jnp.sum(leaving), gone, state)


def swaying(
    t: TangentNetwork, there: KinkRegime, needed: Bool[Array, ""] | bool = True
) -> Bool[Array, " sites"]:
    """The sites below others that slide that descent does not let go, though Ψ < 0; if that
    is needed.

    Gates of a sample sway together: the signal that a site sees while it is on is not the
    mean signal, so that it may stay at its kink.
    """
    none = jnp.zeros_like(there.below)
    doubtful = there.below & (t.gain * there.room(none) < -t.rounding) & needed

    def played() -> Bool[Array, " sites"]:
        return play(t, there.own_rate(t), jnp.asarray(_LONG), doubtful).sways

    return jax.lax.cond(jnp.any(doubtful), played, lambda: none)
