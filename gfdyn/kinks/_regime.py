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
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Int8

from ._tangent import TangentNetwork, holding


OFF, ON, SLIDING = np.int8(0), np.int8(1), np.int8(2)

Row = Float[Array, " sites"]
Square = Float[Array, "sites sites"]
Scalar = Float[Array, ""]

# Proposals before gradient descent is played, and after each time that it was.
_PROPOSALS = 6
_PLAYS = 4
# Rounds in which a play comes to the kinks; of all of the first play, and how many times
# as many each further one has; of one that tells whether a site sways to the end.
_APPROACH = 50
_ROUNDS, _LONGER = 400, 3
_LONG = 10_000
# A gate that stays for so many rounds does not sway.
_SETTLED = 300


class KinkRegime(eqx.Module):
    """The flow with given sites on and sliding: rates, multipliers, and what may leave.

    `opens` and `closes` are Ψ where the kink of a site is let go to either side, ∞ at sites
    that do not slide; `apart` is the rates of all sites as it opens and as it closes.
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
        """How far each sliding site is from being let go; those that are below others are
        not where they sway."""
        room = jnp.minimum(self.opens, self.closes)
        return jnp.where(sways & self.below, jnp.inf, room)

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
    gained, lost = jnp.maximum(shares, 0.0), jnp.maximum(-shares, 0.0)
    opens = gained @ signal - shares @ mu
    closes = lost @ signal + shares @ mu
    # What is at rest, off, is moved by others alone: gradient descent is left of its kink.
    slides = jnp.any((shares != 0) & sliding[None, :], axis=1)
    together = sliding | (slides & still)
    state = jnp.where(together, SLIDING, jnp.where(on, ON, OFF))
    leader = slides & (jnp.argmax(shares != 0, axis=1) == jnp.arange(len(own)))
    rising = through @ t.passed
    opens, closes, apart_open, apart_closed = _parted(
        t, rising, shares, mu, signal, on, hangs, still, leader, opens, closes
    )
    infinite = jnp.full_like(opens, jnp.inf)
    reached = jnp.any((rising != 0) & together[:, None], axis=0)
    below = leader & jnp.any((shares != 0) & reached[None, :], axis=1)
    return KinkRegime(
        state,
        rate,
        nu,
        signal,
        jnp.where(leader, opens, infinite),
        jnp.where(leader, closes, infinite),
        apart_open,
        apart_closed,
        below,
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


def _parted(
    t: TangentNetwork,
    rising: Square,
    shares: Square,
    mu: Row,
    signal: Row,
    on: Bool[Array, " sites"],
    hangs: Bool[Array, " sites"],
    still: Bool[Array, " sites"],
    leader: Bool[Array, " sites"],
    opens: Row,
    closes: Row,
) -> tuple[Row, Row, Square, Square]:
    """Ψ and rates as each kink is let go, where that moves others above it apart."""
    shared = (jnp.sum(shares != 0, axis=1) > 1) | hangs
    above = jnp.where((still & shared)[:, None] & still[None, :], rising, 0.0)
    stacked = leader & jnp.any((shares != 0) & jnp.any(above != 0, axis=0)[None, :], axis=1)

    def look(i: Int[Array, ""], found: tuple) -> tuple:
        opens, closes, opened, closed = found
        site = order[i]
        p_open = _following(t, rising, shares, mu, signal, on, hangs, still, shares[site])
        p_closed = _following(
            t, rising, shares, mu, signal, on, hangs, still, -shares[site]
        )

        def psi(p: Row) -> Scalar:
            return jnp.sum(jnp.where(still, _change(signal, mu, p), 0.0))

        return (
            opens.at[site].set(psi(p_open)),
            closes.at[site].set(psi(p_closed)),
            opened.at[site].set(p_open),
            closed.at[site].set(p_closed),
        )

    order = jnp.argsort(~stacked, stable=True)
    start = (opens, closes, shares, -shares)
    return jax.lax.fori_loop(0, jnp.sum(stacked), look, start)


def _following(
    t: TangentNetwork,
    rising: Square,
    shares: Square,
    mu: Row,
    signal: Row,
    on: Bool[Array, " sites"],
    hangs: Bool[Array, " sites"],
    still: Bool[Array, " sites"],
    first: Row,
) -> Row:
    """The rates of all sites as those of one kink get the rates `first`.

    In each layer, from below, a kink whose sites are pushed apart stays where it is, or
    moves so that one of them does not: whichever makes Ψ smaller there.
    """
    own = first != 0
    together = (shares != 0) & ~own[None, :]

    def psi(p: Row) -> Row:
        return _change(signal, mu, p)

    p = first
    for _ in range(t.layers - 1):
        # What sites pass beyond what those that are on pass already
        passed = jnp.where(still, jnp.maximum(p, 0.0) - jnp.where(on, p, 0.0), 0.0)
        pushed = jnp.where(still & ~own, rising @ passed, 0.0)
        staying = jnp.sum(jnp.where(together, psi(pushed)[None, :], 0.0), axis=1)
        moved = pushed[None, :] - pushed[:, None] * shares
        moving = jnp.sum(jnp.where(together, jax.vmap(psi)(moved), 0.0), axis=1)
        # Of all sites of a kink the best to keep still
        choice = jnp.argmin(jnp.where(together, moving[:, None], jnp.inf), axis=0)
        better = (moving[choice] < staying) & ~hangs & (pushed[choice] != 0)
        columns = jnp.arange(len(p))
        p = jnp.where(own, first, jnp.where(better, moved[choice, columns], pushed))
    return p


def _change(signal: Row, mu: Row, p: Row) -> Row:
    """What each site adds to Ψ at rates p."""
    return signal * jnp.maximum(p, 0.0) - mu * p


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
    t: TangentNetwork,
    there: KinkRegime,
    singly: Bool[Array, ""],
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

    def let_go(i: Int[Array, ""], state: Array) -> Array:
        site = order[i]
        gone = there.after_leaving(site)
        return jnp.where(gone != there.state, gone, state)

    order = jnp.argsort(~leaving, stable=True)
    return jax.lax.fori_loop(0, jnp.sum(leaving), let_go, state)


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
    mu = there.nu + jnp.where(there.state == ON, there.signal, 0.0)
    start = t.rate - t.gram @ mu

    def played() -> Bool[Array, " sites"]:
        return play(t, start, jnp.asarray(_LONG), doubtful).sways

    return jax.lax.cond(jnp.any(doubtful), played, lambda: none)


class Played(eqx.Module):
    """Where gradient descent settles: the states, and which sites sway between both sides
    to the end."""

    state: Int8[Array, " sites"]
    sways: Bool[Array, " sites"]


def play(
    t: TangentNetwork,
    start: Row,
    rounds: Int[Array, ""],
    asked: Bool[Array, " sites"],
) -> Played:
    """Gradient descent of unit steps, from some times `start`; until none of the sites
    asked about sways, or all rounds have been played."""

    def rates(x: Row) -> Row:
        p = x
        for _ in range(t.layers - 1):
            p = x + t.passed @ jnp.maximum(p, 0.0)
        return p

    def velocity(open_: Array) -> Row:
        mu = jnp.where(open_, t.signal, 0.0)
        for _ in range(t.layers - 1):
            mu = jnp.where(open_, t.signal + t.passed.T @ mu, 0.0)
        return t.rate - t.gram @ mu

    def going(carry: tuple) -> Array:
        k, *_, last, _ = carry
        return (k < rounds) & jnp.any(asked & (k - last < _SETTLED))

    def step(carry: tuple) -> tuple:
        k, x, open_, last, before = carry
        x = x + velocity(open_)
        now = rates(x) > t.rounding
        changed = now != open_
        before = jnp.where(changed, last, before)
        return k + 1, x, now, jnp.where(changed, k, last), before

    x = _APPROACH * start
    begin = jnp.zeros_like(rounds)
    never = jnp.zeros(start.shape, rounds.dtype)
    carry = (begin, x, rates(x) > t.rounding, never, never - 1)
    k, _, open_, last, before = jax.lax.while_loop(going, step, carry)
    state = jnp.where(2 * before >= k, SLIDING, jnp.where(open_, ON, OFF))
    sways = asked & (k - last < _SETTLED)
    return Played(jnp.where(t.present, state, OFF), sways)
