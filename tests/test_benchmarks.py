"""The benchmarks run, at a small size, and measure what they say."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


SCRIPT = Path(__file__).parents[1] / "benchmarks" / "work_precision.py"


@pytest.mark.slow
def test_work_precision(tmp_path):
    command = [sys.executable, str(SCRIPT), "--smoke", "--out", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    report = json.loads((tmp_path / "work_precision.json").read_text())
    assert report["machine"]["jax"]
    rows = report["rows"]
    by_method = {row["method"]: row for row in rows}
    assert {"ExactKinks", "diffrax Tsit5", "scipy LSODA", "gradient descent"} <= set(
        by_method
    )
    assert all(row["error"] is not None for row in rows if row["finished"])
    assert by_method["ExactKinks"]["finished"]
    assert by_method["ExactKinks"]["error"] <= 1e-2
    # Cut off where the work allowed is used up
    assert not by_method["scipy LSODA"]["finished"]
    assert by_method["scipy LSODA"]["error"] is None
    assert (tmp_path / "work_precision.png").stat().st_size > 10_000
