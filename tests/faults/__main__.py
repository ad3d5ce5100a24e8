"""Try every row as often as it says; write benchmarks/faults.json and docs/reliability.md.

python tests/faults                    the whole table
python tests/faults --only files       the rows of some parts; the counts of others stay
"""

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any


HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path += [str(HERE), str(ROOT / "benchmarks"), str(ROOT / "tests")]

from _report import write_report  # noqa: E402
from counting import counts  # noqa: E402
from page import PAGE, REPORT, with_table  # noqa: E402
from rows import ROWS  # noqa: E402
from table import GOOD, Row  # noqa: E402
from tqdm import tqdm  # noqa: E402

from gfdyn._atomic import replace_atomically  # noqa: E402


# In the order of the table.
PARTS = tuple(dict.fromkeys(row.part for row in ROWS))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/faults")
    parser.add_argument("--only", choices=PARTS, nargs="+", help="the rows of some parts")
    parts = parser.parse_args().only or PARTS
    counted = counted_now([row for row in ROWS if row.part in parts])
    found = {(row["part"], row["fault"]): row for row in counted_before() + counted}
    rows = [found[key] for row in ROWS if (key := (row.part, row.fault)) in found]
    write_report(REPORT, ["gfdyn", "jax", "jaxlib", "diffrax", "equinox"], rows=rows)
    page = with_table(PAGE.read_text(), rows)
    replace_atomically(PAGE, partial(Path.write_text, data=page))
    return int(any(set(row["outcomes"]) - GOOD for row in counted))


def counted_now(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows of the report, each said as it ends."""
    counted: list[dict[str, Any]] = []
    with tqdm(total=sum(row.trials for row in rows), desc="trials") as progress:
        for row in counts(rows):
            counted.append(row)
            outcomes = row["outcomes"]
            said = ", ".join(f"{number} {name}" for name, number in outcomes.items())
            progress.write(f"{row['part']}: {row['fault']}: {said}")
            progress.update(sum(outcomes.values()))
    return counted


def counted_before() -> list[dict[str, Any]]:
    """The rows of the report as it stands."""
    return json.loads(REPORT.read_text())["rows"] if REPORT.exists() else []


if __name__ == "__main__":
    sys.exit(main())
