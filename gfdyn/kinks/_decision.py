"""The decision at a kink: which sites are on, off or sliding next.

By the law of `_regime.py` a regime is proposed and verified; where none is right soon,
gradient descent is played.

**Three outcomes.** A site that reaches its kink *crosses* if beyond it the flow leads on,
*slides* if it leads back; and a site that slides is *let go* where Ψ turns negative: opened
if ν > c, closed if ν < 0, and where both hold the kink has turned from attracting to
repelling: the flow is not unique, and the gate goes to the side on which it stood for
longer (open at part λ of the steps of descent). Sites that share a kink are opened
and closed together, by the sign of their part in it. Where a site opens below others that
share their kinks, these part from it or go with it, whichever lowers Ψ.

**Below others that slide** Ψ < 0 is not enough. Gates of a sample sway together: while the
lower site is on, the upper one is on more often than on the average, or less, so that
the signal c that the lower one meets is not the mean one. What descent does is played.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int8

from ._normals import Row
from ._play import play
from ._regime import KinkRegime, regime
from ._slots import NONE, OFF, ON, SLIDING
from ._tangent import TangentNetwork


# Proposals before gradient descent is played, and after each time that it was; in the
# first few all is changed that is wrong.
_PROPOSALS, _TOGETHER = 24, 3
_PLAYS = 4
# Rounds of the first play, and how many times as many each further one has; of one that
# tells whether a site sways to the end.
_ROUNDS, _LONGER = 400, 3
_LONG = 10_000


class FirstProposal(eqx.Module):
    """The regime that is tried first, where gradient descent begins, and whether it is
    played at once."""

    state: Int8[Array, " sites"]
    start: Row
    playing: Bool[Array, ""]


class Decision(eqx.Module):
    """The state of each site next, whether it was verified, and other states that may be as
    right, where gradient descent was not seen to settle; `NONE` elsewhere."""

    state: Int8[Array, " sites"]
    verified: Bool[Array, ""]
    others: Int8[Array, " sites"]


def decide(
    t: TangentNetwork,
    state: Int8[Array, " sites"],
    propose: Callable[[KinkRegime], FirstProposal],
    needed: Bool[Array, ""] | bool = True,
) -> Decision:
    """The regime in which gradient descent settles, from what the one before proposes.

    What is wrong with a proposal makes the next one, if Φ is convex: then the regime that
    is right is the only one. If it is not, if no proposal is right soon, or if it asks for
    that, gradient descent is played, from its start, and makes the next proposal (`play`).
    If no play leads to a regime that is right, those are tried that the first proposal
    leads to, and that with all sites sliding.
    """
    period = _PROPOSALS + 1
    convex = ~jnp.any(t.present & (t.signal < 0)) & ~jnp.any(t.passed != 0)
    sliding = jnp.where(t.present, SLIDING, OFF)

    def going(carry: tuple) -> Array:
        *_, verified, attempt = carry
        return ~verified & (attempt < (_PLAYS + 3) * period - 1)

    def attempt(carry: tuple) -> tuple:
        before, first, state, verified, number = carry
        # The regime before is looked at here as well: the program holds the law once.
        proposes = number < 0
        number = jnp.where((number == 1) & ~convex, _PROPOSALS, number)
        turn = number // period
        afresh = (number % period == _PROPOSALS) & ~proposes
        plays = ~verified & afresh & (turn < _PLAYS)
        # Under vmap all lanes play, those that need not no round.
        rounds = jnp.where(plays, _ROUNDS * _LONGER**turn, 0)

        def played() -> tuple:
            found = play(t, first.start, rounds, t.present).state
            return before, first, found, jnp.asarray(False)

        def proposed() -> tuple:
            begins = jnp.where(turn == _PLAYS, first.state, sliding)
            there = regime(t, jnp.where(afresh, begins, state))
            now = there.state, propose(there)
            was, proposal = jax.tree.map(
                lambda new, old: jnp.where(proposes, new, old), now, (before, first)
            )
            singly = number % period >= _TOGETHER
            better = _next(t, there, singly, ~proposes)
            after = jnp.where(proposes, proposal.state, better)
            return was, proposal, after, ~proposes & jnp.all(after == there.state)

        before, first, state, verified = jax.lax.cond(plays, played, proposed)
        begins = jnp.where(first.playing, _PROPOSALS, 0)
        after = jnp.where(proposes, begins, number + 1)
        return before, first, state, verified, after

    none = FirstProposal(state, jnp.zeros_like(t.rate), jnp.asarray(False))
    carry = (state, none, state, ~jnp.asarray(needed), jnp.asarray(-1))
    before, first, state, verified, number = jax.lax.while_loop(going, attempt, carry)
    # What was to change may slide, or not.
    unknown = (number > (_PLAYS + 1) * period) & (first.state != before)
    other = jnp.where(state == SLIDING, first.state, SLIDING)
    return Decision(state, verified, jnp.where(unknown, other, NONE))


def _next(
    t: TangentNetwork,
    there: KinkRegime,
    singly: Bool[Array, ""],
    needed: Bool[Array, ""],
) -> Int8[Array, " sites"]:
    """The state with what is wrong with it changed, the worst of it alone if `singly`.

    A site whose rate leads to its other side goes there if it would go on there, and slides
    if it would come back, as does an open one that stays; a sliding one with Ψ < 0 is let
    go.
    """
    on, off = there.state == ON, there.state == OFF
    rate, rounding = there.rate, there.rate_rounding
    wrong = there.stays | jnp.where(on, rate < -rounding, off & (rate > rounding))
    own_flip = jnp.diagonal(t.gram) * there.signal
    beyond = jnp.where(on, rate + own_flip, rate - own_flip)
    leads_on = ~there.stays & jnp.where(on, beyond < 0, beyond > 0)
    sways = swaying(t, there, needed & ~jnp.any(wrong))
    room = there.room(sways)
    leaving = room < 0
    badness = jnp.where(wrong, jnp.abs(rate), jnp.where(leaving, -t.gain * room, 0.0))
    worst = jnp.arange(len(rate)) == jnp.argmax(badness)
    # Kinks that depend on each other are let go together.
    first = jnp.any(worst & leaving)
    wrong = wrong & (worst | ~singly)
    after = jnp.where(first | ~singly, there.let_go(sways), there.state)
    other = jnp.where(leads_on, jnp.where(on, OFF, ON), SLIDING)
    return jnp.where(wrong, other, after)


def swaying(
    t: TangentNetwork, there: KinkRegime, needed: Bool[Array, ""] | bool = True
) -> Bool[Array, " sites"]:
    """The sites below others that slide that descent does not let go, though Ψ < 0; if that
    is needed.

    Gates of a sample sway together: the signal that a site sees while it is on is not the
    mean signal, so that it may stay at its kink.
    """
    none = jnp.zeros_like(there.below)
    doubtful = there.below & (there.room(none) < 0) & needed

    def played() -> Bool[Array, " sites"]:
        return play(t, there.own_rate(t), jnp.asarray(_LONG), doubtful).sways

    return jax.lax.cond(jnp.any(doubtful), played, lambda: none)
