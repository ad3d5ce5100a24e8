"""Try every row as often as it says; write benchmarks/faults.json and docs/reliability.md.

python tests/faults                    the whole table
python tests/faults --only files       the rows of some parts; the counts of others stay
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

import jax  # noqa: E402
from _report import write_report  # noqa: E402
from page import PAGE, REPORT, with_table  # noqa: E402
from rows import ROWS  # noqa: E402
from table import GOOD, Row  # noqa: E402
from tqdm import tqdm  # noqa: E402

from gfdyn._atomic import replace_atomically  # noqa: E402
from gfdyn._room import make_room  # noqa: E402


# In the order of the table.
PARTS = tuple(dict.fromkeys(row.part for row in ROWS))


def count(row: Row) -> dict[str, Any]:
    """A row of the report: how its trials ended, and which of them did not end well."""
    trials = tqdm(row.outcomes(row.trials), f"{row.part}: {row.fault}", row.trials)
    counted: Counter[str] = Counter()
    wrong: dict[str, list[int]] = {}
    for i, outcome in enumerate(trials):
        counted[outcome.value] += 1
        if not outcome.is_good:
            wrong.setdefault(outcome.value, []).append(i)
        make_room()
    described = {"part": row.part, "fault": row.fault, "expected": row.expected}
    found = {**described, "outcomes": dict(sorted(counted.items()))}
    return {**found, "trials": wrong} if wrong else found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/faults")
    parser.add_argument("--only", choices=PARTS, nargs="+", help="the rows of some parts")
    parts = parser.parse_args().only or PARTS
    jax.config.update("jax_enable_x64", True)
    counted = [count(row) for row in ROWS if row.part in parts]
    rows = counted + [row for row in counted_before() if row["part"] not in parts]
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
