"""docs/reliability.md: its table, drawn from benchmarks/faults.json."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from table import Outcome


ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "reliability.md"
REPORT = ROOT / "benchmarks" / "faults.json"

_BEGIN, _END = "<!-- the table: make faults -->", "<!-- end of the table -->"


def with_table(page: str, rows: Sequence[dict[str, Any]]) -> str:
    """The page, with the table of these rows between its two marks."""
    before, rest = page.split(_BEGIN)
    _, after = rest.split(_END)
    return f"{before}{_BEGIN}\n{_table(rows)}\n{_END}{after}"


def _table(rows: Sequence[dict[str, Any]]) -> str:
    outcomes = [outcome.value for outcome in Outcome]
    header = ["part", "fault", "what is expected", "trials", *outcomes]
    total: Counter[str] = Counter()
    lines = [header, ["---"] * 3 + ["---:"] * (1 + len(outcomes))]
    for row in rows:
        total.update(row["outcomes"])
        described = [row["part"], row["fault"], row["expected"]]
        lines.append(described + _numbers(row["outcomes"], outcomes))
    lines.append(["", "", "**all**", *_numbers(total, outcomes)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _numbers(counted: dict[str, int], outcomes: Sequence[str]) -> list[str]:
    return [str(sum(counted.values())), *(str(counted.get(name, 0)) for name in outcomes)]
