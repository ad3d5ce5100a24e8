"""What a theorem claims and what is the case: both sides, and whether it applies."""

from collections.abc import Mapping
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from .._numerics import ROUNDING
from .._tracing import is_concrete


class Check(eqx.Module):
    """A claim `lhs <= rhs` or `lhs == rhs`, entry by entry, with its assumptions.

    Under `jax.vmap`, all of it has a leading axis; `str(check)` then sums it up.

    Attributes:
        lhs, rhs: the two sides, of one shape.
        holds: where the claim is true, up to rounding; of that shape.
        vacuous: where it would be true of any net whatever; of that shape.
        assumptions: by name, where each was met; of that shape or of its first axes.
        relation: "<=" or "==".
    """

    lhs: Float[Array, "*shape"]
    rhs: Float[Array, "*shape"]
    holds: Bool[Array, "*shape"]
    vacuous: Bool[Array, "*shape"]
    assumptions: dict[str, Bool[Array, "..."]]
    relation: str = eqx.field(static=True)

    @property
    def applies(self) -> Bool[Array, "*shape"]:
        """Where every assumption was met, of the shape of `lhs`."""
        return _all_met(self.assumptions, self.holds)

    @property
    def verdict(self) -> str:
        """VIOLATED where it applies and fails; else UNDEFINED where a side is NaN; else
        HOLDS, unless it applies nowhere (ASSUMPTIONS NOT MET) or is VACUOUS where it does.
        """
        here = self._on_host()
        applies = _all_met(here.assumptions, here.holds)
        undefined = np.isnan(here.lhs) | np.isnan(here.rhs)
        if np.any(applies & ~here.holds & ~undefined):
            return "VIOLATED"
        if np.any(applies & undefined):
            return "UNDEFINED"
        if not np.any(applies):
            return "ASSUMPTIONS NOT MET"
        return "HOLDS" if np.any(applies & ~here.vacuous) else "VACUOUS"

    def summary(self) -> str:
        """The verdict in a line: the two sides where they are closest, how many entries are
        true and how many of them say nothing, and which assumptions fail."""
        if not is_concrete(*jax.tree.leaves(self)):
            return f"Check: lhs {self.relation} rhs of shape {self.lhs.shape}, traced"
        here, parts = self._on_host(), []
        applies, size = _all_met(here.assumptions, here.holds), here.lhs.size
        if np.any(applies):
            i = _closest(here, applies)
            parts.append(f"{here.lhs[i]:.6g} {self.relation} {here.rhs[i]:.6g}")
        if np.any(applies) and size > 1:
            true, vacuous = np.sum(applies & here.holds), np.sum(applies & here.vacuous)
            parts[0] += " at the closest"
            parts.append(f"true in {true} of {np.sum(applies)}, vacuous in {vacuous}")
        for name, met in here.assumptions.items():
            failed = np.sum(~_all_met({name: met}, here.holds))
            of = f" in {failed} of {size}" if size > 1 else ""
            parts += [f"not {name}{of}"] if failed else []
        return f"{self.verdict}: " + "; ".join(parts)

    def __repr__(self) -> str:
        """The summary."""
        return self.summary()

    def _on_host(self) -> Any:
        """The same in NumPy, where looking at it compiles nothing."""
        return jax.tree.map(np.asarray, self)


def _all_met(assumptions: Mapping[str, Any], like: Any) -> Any:
    """Whether all are met, each repeated along the last axes of `like` that it lacks."""
    met = like | True
    for each in assumptions.values():
        met = met & each.reshape(each.shape + (1,) * (like.ndim - each.ndim))
    return met


def _closest(here: Any, applies: Any) -> tuple[int, ...]:
    """Where the claim is closest to failing, or fails by most, of where it applies."""
    with np.errstate(invalid="ignore"):
        gap = np.asarray(here.lhs - here.rhs)
    gap = np.abs(gap) if here.relation == "==" else gap
    gap = np.where(applies & ~np.isnan(gap), gap, -np.inf)
    return tuple(int(i) for i in np.unravel_index(np.argmax(gap), gap.shape))


def at_most(
    lhs: Float[Array, "*shape"],
    rhs: Float[Array, "*#shape"],
    *,
    assumptions: Mapping[str, ArrayLike],
    vacuous: ArrayLike = False,
    slack: ArrayLike | None = None,
) -> Check:
    """The claim lhs ≤ rhs + slack; 100 roundings of the larger side if slack is None."""
    return _check("<=", lhs, rhs, assumptions, vacuous, slack)


def equal(
    lhs: Float[Array, "*shape"],
    rhs: Float[Array, "*#shape"],
    *,
    assumptions: Mapping[str, ArrayLike],
    vacuous: ArrayLike = False,
    slack: ArrayLike | None = None,
) -> Check:
    """The claim |lhs − rhs| ≤ slack; 100 roundings of the larger side if slack is None."""
    return _check("==", lhs, rhs, assumptions, vacuous, slack)


def _check(
    relation: Literal["<=", "=="],
    lhs: Array,
    rhs: Array,
    assumptions: Mapping[str, ArrayLike],
    vacuous: ArrayLike,
    slack: ArrayLike | None,
) -> Check:
    rhs = jnp.broadcast_to(rhs, lhs.shape)
    finite = jnp.isfinite(lhs) & jnp.isfinite(rhs)
    if slack is None:
        size = jnp.maximum(jnp.abs(lhs), jnp.abs(rhs))
        slack = ROUNDING * float(jnp.finfo(lhs.dtype).eps) * size
    # Infinities are compared as they are.
    slack = jnp.where(finite, slack, 0)
    gap = jnp.where(finite, lhs - rhs, 0)
    holds = jnp.where(finite, gap <= slack, lhs <= rhs)
    if relation == "==":
        holds = jnp.where(finite, jnp.abs(gap) <= slack, lhs == rhs)
    return Check(
        lhs=lhs,
        rhs=rhs,
        holds=holds,
        vacuous=jnp.broadcast_to(jnp.asarray(vacuous), lhs.shape),
        assumptions={name: jnp.asarray(met) for name, met in assumptions.items()},
        relation=relation,
    )
