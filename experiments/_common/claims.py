"""Claims of a paper with their verdicts: a number was measured, and holds in a range.

Shared by the experiments of all papers.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal


Verdict = Literal["HOLDS", "REFUTED", "NOT TESTED"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement that is true if low ≤ measured ≤ high.

    Attributes:
        statement: what is claimed, with the quantity that is measured.
        source: where: a figure, an equation; "not in the paper" for our own.
        measured: the number; inf for what did not happen in time enough, None where it was
            not tested.
        low, high: the range, both ends included.
        known_false: whether it stands here to be refuted, which it is at every size.
        trial: whether it was measured at a size that is too small to refute it.
    """

    statement: str
    source: str
    measured: float | None
    low: float = -math.inf
    high: float = math.inf
    known_false: bool = False
    trial: bool = False

    def __post_init__(self):
        if not self.low <= self.high or self.low == self.high == math.inf:
            raise ValueError(
                f"{self.statement!r}: low={self.low} and high={self.high} are no range; "
                "give low <= high."
            )
        if math.isinf(self.low) and math.isinf(self.high):
            raise ValueError(
                f"{self.statement!r} holds whatever is measured; give low=, high= or both."
            )
        if self.measured is not None and math.isnan(self.measured):
            raise ValueError(
                f"{self.statement!r}: measured=nan has no verdict; give measured=None "
                "where it was not tested."
            )

    @property
    def verdict(self) -> Verdict:
        """HOLDS, REFUTED or NOT TESTED, as is what fails in a trial."""
        if self.measured is None:
            return "NOT TESTED"
        if self.low <= self.measured <= self.high:
            return "HOLDS"
        return "NOT TESTED" if self.trial and not self.known_false else "REFUTED"

    @property
    def expected(self) -> str:
        """The range as text."""
        if self.low == self.high:
            return f"{self.low:.6g}"
        if math.isinf(self.low):
            return f"<= {self.high:.6g}"
        if math.isinf(self.high):
            return f">= {self.low:.6g}"
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        if half < 1e-3 * abs(middle):
            return f"{middle:.6g} ± {half:.1g}"
        return f"{self.low:.6g} to {self.high:.6g}"


def near(
    statement: str, source: str, measured: float | None, value: float, tolerance: float
) -> Claim:
    """The claim |measured − value| ≤ tolerance.

    Raises:
        ValueError: on a negative tolerance, or NaN.
    """
    return Claim(
        statement=statement,
        source=source,
        measured=measured,
        low=value - tolerance,
        high=value + tolerance,
    )


def held(statement: str, source: str, violated: Any, *, known_false: bool = False) -> Claim:
    """The claim that a statement is violated in none of its entries."""
    return Claim(
        statement=f"{statement}, entries violated",
        source=source,
        measured=int(violated),
        high=0,
        known_false=known_false,
    )


def violations(check: Any) -> Any:
    """In how many entries a check of `gf.theory` applies and fails."""
    return (check.applies & ~check.holds).sum()


def table(claims: Sequence[Claim]) -> str:
    """A line for each claim: verdict, measured, expected, statement and source."""
    cells = [("verdict", "measured", "expected", "claim")]
    for claim in claims:
        measured = "-" if claim.measured is None else f"{claim.measured:.6g}"
        statement = f"{claim.statement} ({claim.source})"
        cells.append((claim.verdict, measured, claim.expected, statement))
    widths = [max(len(row[i]) for row in cells) for i in range(3)]
    return "\n".join(
        f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:<{widths[2]}}  {d}" for a, b, c, d in cells
    )


def as_json(claims: Sequence[Claim]) -> list[dict[str, Any]]:
    """The claims with verdicts, for a JSON file; None for an end that is infinite."""
    return [
        {
            "claim": claim.statement,
            "source": claim.source,
            "measured": None if claim.measured is None else float(claim.measured),
            "low": None if math.isinf(claim.low) else float(claim.low),
            "high": None if math.isinf(claim.high) else float(claim.high),
            "verdict": claim.verdict,
        }
        for claim in claims
    ]
