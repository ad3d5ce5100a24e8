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

**Below or above others that slide**, or below what hangs on several, Ψ < 0 is not enough.
Gates of a sample sway together: while the lower site is on, the upper one is on more often
than on the average, or less, so that the signal c that the lower one meets is not the mean
one. What descent does is played. It may settle in several ways: each play begins where the
last one has left the sites.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int8

from ._normals import Row
from ._play import LONGEST_PLAY, part_of_step, play
from ._regime import KinkRegime, regime
from ._slots import NONE, OFF, ON, SLIDING
from ._tangent import TangentNetwork


# Proposals before gradient descent is played, and after each time that it was; in the
# first few all is changed that is wrong.
_PROPOSALS, _TOGETHER = 24, 3
_PLAYS = 4
# Rounds of the first play, and how many times as many each further one has.
_ROUNDS, _LONGER = 400, 3


class FirstProposal(eqx.Module):
    """The regime that is tried first, whether gradient descent is played at once, and what
    else was seen in the regime before."""

    state: Int8[Array, " sites"]
    playing: Bool[Array, ""]
    seen: Any = None


class Decision(eqx.Module):
    """The state of each site next, whether it was verified, and other states that may be as
    right, where gradient descent was not seen to settle; `NONE` elsewhere; and what was
    seen in the regime before.

    `left_at` is how far from its kink a play left each site, in units of the largest step
    that it makes; 0 if none was needed.
    """

    state: Int8[Array, " sites"]
    verified: Bool[Array, ""]
    others: Int8[Array, " sites"]
    left_at: Row
    seen: Any


def decide(
    t: TangentNetwork,
    state: Int8[Array, " sites"],
    propose: Callable[[KinkRegime], FirstProposal],
    standing: Callable[[KinkRegime], Row],
    deciding: Bool[Array, ""] | bool = True,
    nothing: Any = None,
) -> Decision:
    """The regime in which gradient descent settles, from what the one before proposes, in
    which sites are `standing` so far from their kinks as it begins; or, if not `deciding`,
    what is seen in the one before alone. `nothing` is what is seen nowhere.

    What is wrong with a proposal makes the next one, if Φ is convex: then the regime that
    is right is the only one. If it is not, if no proposal is right soon, or if it asks for
    that, gradient descent is played, from where the sites are, and makes the next proposal
    (`play`); if that leads to none that is right, it is played on. If no play does, those
    are tried that the first proposal leads to, and that with all sites sliding.
    """
    deciding, period = jnp.asarray(deciding), _PROPOSALS + 1
    convex = ~jnp.any(t.present & (t.signal < 0)) & ~jnp.any(t.passed != 0)
    sliding = jnp.where(t.present, SLIDING, OFF)

    def going(carry: tuple) -> Array:
        *_, verified, number = carry
        undecided = deciding & ~verified & (number < (_PLAYS + 3) * period - 1)
        return (number < 0) | undecided

    def attempt(carry: tuple) -> tuple:
        before, first, state, offset, verified, number = carry
        # The regime before is looked at here as well: the program holds the law once.
        proposes = number < 0
        number = jnp.where((number == 1) & ~convex, _PROPOSALS, number)
        turn = number // period
        afresh = (number % period == _PROPOSALS) & ~proposes
        plays = ~verified & afresh & (turn < _PLAYS)
        just_played = (number % period == 0) & (turn > 0) & (turn <= _PLAYS)
        # Under vmap all lanes play, those that need not no round.
        rounds = jnp.where(plays, _ROUNDS * _LONGER**turn, 0)

        def played() -> tuple:
            found = play(t, offset, rounds, t.present)
            return before, first, found.state, found.offset, jnp.asarray(False)

        def proposed() -> tuple:
            begins = jnp.where(turn == _PLAYS, first.state, sliding)

            def sways(there: KinkRegime) -> Bool[Array, " sites"]:
                right = ~jnp.any(_wrong(t, there, just_played))
                asked = jnp.where(proposes, ~deciding, right)

                def stands() -> Row:
                    return jnp.where(proposes, standing(there), offset)

                return _swaying(t, there, stands, asked)

            there = regime(t, jnp.where(afresh, begins, state), sways)
            now = there.state, propose(there)
            was, proposal = jax.tree.map(
                lambda new, old: jnp.where(proposes, new, old), now, (before, first)
            )
            singly = number % period >= _TOGETHER
            better = _next(t, there, singly, just_played)
            after = jnp.where(proposes, proposal.state, better)
            right = ~proposes & jnp.all(after == there.state)
            begun = jax.lax.cond(
                proposes & deciding, lambda: standing(there), lambda: offset
            )
            kept = jnp.where(right & (turn == 0), 0.0, begun)
            return was, proposal, after, kept, right

        before, first, state, offset, verified = jax.lax.cond(plays, played, proposed)
        begins = jnp.where(first.playing, _PROPOSALS, 0)
        after = jnp.where(proposes, begins, number + 1)
        return before, first, state, offset, verified, after

    nowhere, no = jnp.zeros_like(t.rate), jnp.asarray(False)
    none = FirstProposal(state, no, nothing)
    start = (state, none, state, nowhere, no, jnp.asarray(-1))
    found = jax.lax.while_loop(going, attempt, start)
    before, first, state, offset, verified, number = found
    # What was to change may slide, or not.
    unknown = (number > (_PLAYS + 1) * period) & (first.state != before)
    other = jnp.where(state == SLIDING, first.state, SLIDING)
    others = jnp.where(unknown, other, NONE)
    return Decision(state, verified, others, part_of_step(t, offset), first.seen)


def _wrong(
    t: TangentNetwork, there: KinkRegime, just_played: Bool[Array, ""]
) -> Bool[Array, " sites"]:
    """The sites whose rate leads to their other side, and the open ones that stay, unless
    it was just played that descent leaves them there."""
    on, off, rounding = there.state == ON, there.state == OFF, t.rounding
    leads = jnp.where(on, there.rate < -rounding, off & (there.rate > rounding))
    return leads | (there.stays & ~just_played)


def _next(
    t: TangentNetwork,
    there: KinkRegime,
    singly: Bool[Array, ""],
    just_played: Bool[Array, ""],
) -> Int8[Array, " sites"]:
    """The state with what is wrong with it changed, the worst of it alone if `singly`.

    A site whose rate leads to its other side goes there if it would go on there, as far as
    those that slide let it, and slides if it would come back, as does an open one that
    stays. Once no rate is wrong, sliding ones with Ψ < 0 are let go.
    """
    on, rate = there.state == ON, there.rate
    stays, wrong = there.stays & ~just_played, _wrong(t, there, just_played)
    free = jax.lax.cond(
        jnp.any(wrong), lambda: there.held.free(wrong), lambda: jnp.zeros_like(rate)
    )
    own_flip = free * there.signal
    beyond = jnp.where(on, rate + own_flip, rate - own_flip)
    leads_on = ~stays & jnp.where(on, beyond < 0, beyond > 0)
    other = jnp.where(leads_on, jnp.where(on, OFF, ON), SLIDING)
    worst = jnp.argmax(jnp.where(wrong, jnp.abs(rate), -1.0))
    flips = wrong & (~singly | (jnp.arange(len(rate)) == worst))
    flipped = jnp.where(flips, other, there.state)
    return jnp.where(jnp.any(wrong), flipped, there.let_go)


def _swaying(
    t: TangentNetwork,
    there: KinkRegime,
    offset: Callable[[], Row],
    asked: Bool[Array, ""],
) -> Bool[Array, " sites"]:
    """The stacked sites that descent, from where the sites are, does not let go, though
    Ψ < 0; none if not asked.

    Gates of a sample sway together: the signal that a site sees while it is on is not the
    mean signal, so that it may stay at its kink.
    """
    none = jnp.zeros_like(there.stacked)
    doubtful = there.stacked & (there.room < 0) & asked

    def played() -> Bool[Array, " sites"]:
        return play(t, offset(), jnp.asarray(LONGEST_PLAY), doubtful).sways

    return jax.lax.cond(jnp.any(doubtful), played, lambda: none)
