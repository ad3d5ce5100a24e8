"""Try every row as often as it says; write benchmarks/faults.json and docs/reliability.md.

python tests/faults                    the whole table
python tests/faults --only files       the rows of one part; the counts of others stay
"""

import argparse
import json
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any


HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path += [str(HERE), str(ROOT / "benchmarks"), str(ROOT / "tests")]

from _report import write_report  # noqa: E402
from page import PAGE, REPORT, with_table  # noqa: E402
from rows import ROWS  # noqa: E402
from table import GOOD, Row  # noqa: E402
from tqdm import tqdm  # noqa: E402

from gfdyn._atomic import replace_atomically  # noqa: E402


# In the order of the table.
PARTS = tuple(dict.fromkeys(row.part for row in ROWS))


def count(row: Row) -> dict[str, Any]:
    """A row of the report: how its trials ended."""
    trials = tqdm(row.outcomes(row.trials), f"{row.part}: {row.fault}", row.trials)
    counted = Counter(outcome.value for outcome in trials)
    described = {"part": row.part, "fault": row.fault, "expected": row.expected}
    return {**described, "outcomes": dict(sorted(counted.items()))}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/faults")
    parser.add_argument("--only", choices=PARTS, help="the rows of one part")
    part = parser.parse_args().only
    counted = [count(row) for row in ROWS if part in (None, row.part)]
    rows = counted + [row for row in counted_before() if part not in (None, row["part"])]
    rows.sort(key=lambda row: PARTS.index(row["part"]))
    write_report(REPORT, ["gfdyn", "jax", "jaxlib", "diffrax", "equinox"], rows=rows)
    page = with_table(PAGE.read_text(), rows)
    replace_atomically(PAGE, partial(Path.write_text, data=page))
    return int(any(set(row["outcomes"]) - GOOD for row in counted))


def counted_before() -> list[dict[str, Any]]:
    """The rows of the report as it stands."""
    return json.loads(REPORT.read_text())["rows"] if REPORT.exists() else []


if __name__ == "__main__":
    sys.exit(main())
