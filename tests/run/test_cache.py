"""Compiled programs on disk: the second process compiles none."""

import json
import os
import subprocess
import sys
from typing import Any

import jax

import gfdyn as gf


# Solves, and prints how many programs it compiled and how many it found.
PROGRAM = """
import collections, json, sys
import jax
import gfdyn as gf

events = collections.Counter()
jax.monitoring.register_event_listener(lambda name, **_: events.update([name]))
gf.enable_cache(sys.argv[1])
problem = gf.Problem(gf.data.xor(), gf.losses.squared)
net = gf.nets.MLP([2, 3, 1], key=jax.random.key(0))
solver = gf.solvers.Adaptive()
traj = gf.solve(gf.GradientFlow(problem), net, t1=1.0, solver=solver)
names = "hits", "misses"
counts = {name: events[f"/jax/compilation_cache/cache_{name}"] for name in names}
print(json.dumps({**counts, "risk": float(traj.final_risk)}))
"""


def test_second_process_compiles_nothing(tmp_path):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    folder = tmp_path / "programs"
    first, second = (
        json.loads(
            subprocess.run(
                [sys.executable, "-c", PROGRAM, str(folder)],
                env=environment,
                capture_output=True,
                check=True,
                text=True,
            ).stdout
        )
        for _ in range(2)
    )
    assert first["misses"] > 0 and list(folder.iterdir())
    assert second["misses"] == 0 and second["hits"] >= first["misses"]
    assert second["risk"] == first["risk"]


def test_folder_of_the_user(tmp_path, monkeypatch, compilation_cache):
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = tmp_path / ".cache" / "gfdyn"
    assert gf.enable_cache() == expected and expected.is_dir()
    config: Any = jax.config
    assert config.jax_compilation_cache_dir == str(expected)
