"""Samples spread over several devices, here virtual ones of a process of its own."""

import json
import os
import subprocess
import sys

import pytest


PROGRAM = """
import json, sys
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import gfdyn as gf

jax.config.update("jax_enable_x64", True)
mesh = Mesh(np.asarray(jax.devices()), ("samples",))
by_sample = NamedSharding(mesh, PartitionSpec("samples"))
everywhere = NamedSharding(mesh, PartitionSpec())


def end(Flow, data, net, t1, rtol):
    flow = Flow(gf.Problem(data, gf.losses.squared))
    solver = gf.solvers.ExactKinks(rtol=rtol)
    return gf.solve(flow, net, t1=t1, ts=[t1], solver=solver, throw=False)


reports = []
sizes = {
    "small": ([3, 8, 1], 16, {"GradientFlow": 2.0, "EscapeFlow": 5.0}, 1e-7),
    "large": ([4, 32, 32, 2], 80, {"GradientFlow": 0.001, "EscapeFlow": 0.02}, 1e-6),
}
widths, samples, ends, rtol = sizes[sys.argv[1]]
for name, t1 in ends.items():
    Flow = getattr(gf, name)
    teacher = [widths[0], 3, widths[-1]]
    data = gf.data.teacher(samples, teacher, key=jax.random.key(1))
    net = gf.nets.MLP(widths, key=jax.random.key(2))
    one = end(Flow, data, net, t1, rtol)
    spread = jax.device_put(data, by_sample), jax.device_put(net, everywhere)
    many = end(Flow, *spread, t1, rtol)
    pairs = list(zip(one.final.weights, many.final.weights))
    of_input = many.flow.problem.data.x
    reports.append({
        "result": [int(t.result == gf.RESULTS.successful) for t in (one, many)],
        "events": [int(t.stats["num_crossings"]) for t in (one, many)],
        "steps": [int(t.stats["num_steps"]) for t in (one, many)],
        "devices": len(many.final.weights[0].sharding.device_set),
        "rows": sorted(s.data.shape[0] for s in of_input.addressable_shards),
        "gap": max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs),
        "movement": float(np.abs(np.asarray(one.final.weights[0] - net.weights[0])).max()),
    })
print(json.dumps(reports))
"""


@pytest.mark.parametrize(
    "size, samples", [("small", 16), pytest.param("large", 80, marks=pytest.mark.slow)]
)
def test_eight_devices_end_where_one_does(size, samples):
    """To rounding; small and large networks, both flows, with kinks on the way.

    Large ones for some twenty steps: the choice of steps at many kinks amplifies rounding,
    later up to the tolerance.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    count = "--xla_force_host_platform_device_count=8"
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, size],
        env={**os.environ, "XLA_FLAGS": f"{flags} {count}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    reports = json.loads(ran.stdout)
    assert len(reports) == 2
    for report in reports:
        assert report["result"] == [1, 1]
        assert report["devices"] == 8
        assert report["rows"] == [samples // 8] * 8
        assert report["events"][0] == report["events"][1] > 0
        assert report["steps"][0] == report["steps"][1]
        assert report["movement"] > 1e-3
        assert report["gap"] <= 1e-11
