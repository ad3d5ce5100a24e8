"""Compiled programs are dropped before a process can hold no more of them."""

import json
import os
import subprocess
import sys
from typing import Any

import jax
import pytest

import gfdyn as gf
from gfdyn import _program_limit as _room


def test_programs_are_dropped_at_half_of_the_mappings(tmp_path, monkeypatch):
    """There is no such limit on other systems."""
    maps, limit = tmp_path / "maps", tmp_path / "limit"
    monkeypatch.setattr(_room, "_MAPPINGS", maps)
    monkeypatch.setattr(_room, "_LIMIT", limit)
    program: Any = jax.jit(lambda x: 2 * x)
    program(1.0)
    _room.make_room()
    assert program._cache_size() == 1
    maps.write_text("a\nb\nc\n")
    for allowed, kept in (("6", 1), ("5", 0)):
        limit.write_text(allowed)
        _room.make_room()
        assert program._cache_size() == kept


def test_the_user_says_how_many_mappings(tmp_path, monkeypatch):
    maps, limit = tmp_path / "maps", tmp_path / "limit"
    maps.write_text("a\nb\nc\n")
    limit.write_text("4")
    monkeypatch.setattr(_room, "_MAPPINGS", maps)
    monkeypatch.setattr(_room, "_LIMIT", limit)
    program: Any = jax.jit(lambda x: 3 * x)
    for allowed, kept in ((None, 1), (3, 1), (2, 0)):
        program(1.0)
        with gf.program_limit(allowed):
            _room.make_room()
        assert program._cache_size() == kept
    program(1.0)
    _room.make_room()
    assert program._cache_size() == 0
    with pytest.raises(ValueError, match="mappings=0 must be 1 or more, or None"):
        with gf.program_limit(0):
            pass


def test_only_a_solve_that_compiled_looks(monkeypatch):
    looks = []
    monkeypatch.setattr("gfdyn.run._solve.make_room", lambda: looks.append("solve"))
    monkeypatch.setattr("gfdyn.descent._descend.make_room", lambda: looks.append("descent"))
    problem = gf.Problem(gf.data.xor(), gf.losses.squared)
    net = gf.nets.MLP([2, 3, 1], key=jax.random.key(0), scale=0.5)
    flow, solver = gf.GradientFlow(problem), gf.solvers.Adaptive(rtol=1e-3)
    for _ in range(2):
        gf.solve(flow, net, t1=0.1, ts=[0.1], solver=solver)
        gf.descend(problem, net, 0.1, 2)
    assert looks == ["solve", "descent"]

    def risk(net: gf.nets.AbstractNet) -> jax.Array:
        """Inside another program nothing can be dropped."""
        return gf.solve(flow, net, t1=0.2, ts=[0.1, 0.2], solver=solver).final_risk

    jax.jit(risk)(net)
    assert looks == ["solve", "descent"]


# Solves in one shape after another; prints the most mappings met, with those of one shape.
SHAPES = """
import json, sys
from pathlib import Path
import jax
import gfdyn as gf

shapes, mappings = int(sys.argv[1]), int(sys.argv[2])
problem = gf.Problem(gf.data.xor(), gf.losses.squared)
solver = gf.solvers.Adaptive(rtol=1e-3)
met = [Path("/proc/self/maps").read_bytes().count(b"\\n")]
compiled = []
with gf.program_limit(mappings or None):
    for width in range(1, shapes + 1):
        net = gf.nets.MLP([2, width, 1], key=jax.random.key(0), scale=0.1)
        traj = gf.solve(gf.GradientFlow(problem), net, t1=0.1, ts=[0.1], solver=solver)
        compiled.append(int(traj.stats["num_compilations"]))
        met.append(Path("/proc/self/maps").read_bytes().count(b"\\n"))
print(json.dumps({"met": met, "compiled": compiled}))
"""


def in_shapes(shapes: int, mappings: int) -> dict[str, list[int]]:
    """The mappings after each of the shapes, and how many programs each compiled."""
    done = subprocess.run(
        [sys.executable, "-c", SHAPES, str(shapes), str(mappings)],
        env={k: v for k, v in os.environ.items() if not k.startswith("JAX_")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="of Linux alone")


@on_linux
@pytest.mark.slow
@pytest.mark.parametrize("shapes", [12])
def test_shapes_in_one_process(shapes):
    """With a limit the mappings stay near it; without one they grow with each shape."""
    free = in_shapes(shapes, 0)["met"]
    grown = (free[-1] - free[1]) / (shapes - 1)
    assert grown > 100
    limit = int(free[0] + 4 * grown)
    held = in_shapes(shapes, limit)
    assert max(held["met"]) < limit + 2 * (free[1] - free[0]) < free[-1] + 2 * grown
    assert all(held["compiled"])
