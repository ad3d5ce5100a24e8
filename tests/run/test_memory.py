"""What a flow takes of the memory, in a process of its own."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest


# Prints what is asked, and its peak in kB: not that of `resource`, which begins at what the
# process that started it has.
CONVOLUTIONS = r"""
import json, re
from pathlib import Path
import jax
import numpy as np
import gfdyn as gf
from gfdyn.nets import conv, dense, sequential

convolutions = [conv(8, 3, 2, padding="SAME"), conv(16, 3, 2, padding="SAME")]
blocks = [*convolutions, dense(10, "identity")]
net = sequential((32, 32, 3), blocks, key=jax.random.key(0), fan_in=True)
rng = np.random.default_rng(0)
x, classes = rng.normal(size=(4, net.in_size)), rng.integers(0, 10, 4)
data = gf.Dataset(x, np.eye(10)[classes]).astype("float32")
flow = gf.GradientFlow(gf.Problem(data, gf.losses.cross_entropy))
traj = gf.solve(flow, net, t1=0.1, ts=[0.1], solver=gf.solvers.ExactKinks(rtol=1e-3))
status = Path("/proc/self/status").read_text()
peak = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])
print(json.dumps({
    "dtypes": sorted({str(w.dtype) for w in jax.tree.leaves(traj.final)}),
    "crossings": int(traj.stats["num_crossings"]),
    "residual": float(traj.certificate.energy_residual),
    "risks": [float(traj.initial_risk), float(traj.final_risk)],
    "peak": peak,
}))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted otherwise")
def test_convolutions_of_colour_images_fit():
    """32 × 32 × 3 in single precision, with exact kinks, in 2 GB with all of JAX."""
    # As users compile: without the optimisations a convolution is a plain loop.
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", CONVOLUTIONS],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["peak"] * 1024 <= 2e9
    assert found["dtypes"] == ["float32"]
    assert found["crossings"] >= 20 and found["residual"] <= 1e-3
    assert np.diff(found["risks"]) < -1
