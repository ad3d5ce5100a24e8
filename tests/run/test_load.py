"""What is loaded is what a solve or a descent gives back, whatever its checksum says; and
a file that cannot be saved says what helps.
"""

import errno
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

import gfdyn as gf
from gfdyn.run._state import read_state, write_state


Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def traj() -> gf.Trajectory:
    """A descent on the logistic loss, with a record."""
    problem = gf.Problem(gf.data.xor(), gf.losses.logistic)
    net = gf.nets.MLP([2, 4, 1], key=jax.random.key(0), scale=0.5)
    record = {"norms": gf.diagnostics.layer_norms}
    return gf.descend(problem, net, 0.1, 4, save_every=2, record=record)


@pytest.fixture
def file(traj, tmp_path) -> Path:
    traj.save(tmp_path / "run.nc")
    return tmp_path / "run.nc"


def forge(file: Path, edit: Callable[[dict, Arrays], object]) -> None:
    """Edit the tree or the arrays of a file, and compute its checksum anew."""
    state = read_state(file)
    tree, arrays = json.loads(state.tree), state.arrays
    edit(tree, arrays)
    write_state(file, json.dumps(tree), arrays)


def problem_of(tree: dict) -> dict:
    return tree["flow"]["fields"]["problem"]["fields"]


def of_array(name: str, change: Callable[[Any], Any]) -> Callable[[dict, Arrays], None]:
    """An edit of one array."""
    return lambda tree, arrays: arrays.update({name: change(arrays[name])})


def with_entry(value: float) -> Callable[[Any], Any]:
    """Another first entry."""

    def change(array: Any) -> Any:
        changed = array.copy()
        changed.flat[0] = value
        return changed

    return change


# What is edited, and the field that the error must begin with.
FORGERIES = {
    "a text": (lambda t, a: t.update(ts="evil"), "ts='evil', where an array Float"),
    "a number": (lambda t, a: t.update(ts=1.0), "ts=1.0, where an array Float"),
    "a list": (lambda t, a: t.update(ts=[1]), r"ts is \[1\], which is of no kind"),
    "a field less": (lambda t, a: t.pop("ts"), "ts is missing"),
    "a field more": (lambda t, a: t.update(evil=1), "evil: a Trajectory has no such field"),
    "a flow's field more": (
        lambda t, a: t["flow"]["fields"].update(localized=True),
        "flow.localized: a GradientFlow has no such field",
    ),
    "another flow": (
        lambda t, a: t["flow"].update({"class": "EscapeFlow"}),
        "flow.*: a EscapeFlow has no such field",
    ),
    "no flow": (
        lambda t, a: t.update(flow={"class": "Squared", "fields": {}}),
        "flow=Squared.*where AbstractFlow",
    ),
    "a foreign class": (
        lambda t, a: t["flow"].update({"class": "Popen"}),
        "flow is a 'Popen', which is no class known",
    ),
    "another loss": (
        lambda t, a: problem_of(t)["loss"].update({"class": "Squared"}),
        "final_risk=.*that of the last position",
    ),
    "another reduction": (
        lambda t, a: problem_of(t).update(reduction="sum"),
        "final_risk=.*that of the last position",
    ),
    "no reduction": (
        lambda t, a: problem_of(t).update(reduction="evil"),
        "flow.problem.reduction='evil', where 'mean' or 'sum'",
    ),
    "no clock": (
        lambda t, a: t["flow"]["fields"].update(clock="evil"),
        "flow.clock='evil', where 'physical' or 'loss' or 'arc'",
    ),
    "a text for a number": (
        lambda t, a: t["flow"]["fields"].update(weight_decay="0.0"),
        "flow.weight_decay='0.0', where .* or float",
    ),
    "a negative decay": (
        lambda t, a: t["flow"]["fields"].update(weight_decay=-1.0),
        "flow: weight_decay=-1.0 must be 0 or positive",
    ),
    "a slope that is none": (
        lambda t, a: t["final_position"]["fields"]["hidden_activations"]["tuple"][0][
            "fields"
        ].update(slope="0.0"),
        "final_position.hidden_activations.0.slope='0.0', where float",
    ),
    "another result": (
        lambda t, a: t.update(result={"result": "fine"}),
        "result='fine', which is none of gf.RESULTS",
    ),
    "no result": (
        lambda t, a: t.update(result=0),
        "result=0, where an entry of",
    ),
    "a key that is none": (
        lambda t, a: t["checkpoint"]["fields"].update(key_kind="evil"),
        "checkpoint.key_kind='evil'",
    ),
    "a count less": (
        lambda t, a: t["stats"]["dict"].pop("num_slides"),
        "stats=.*where .*num_slides",
    ),
    "the array of another": (
        lambda t, a: t.update(ts={"array": "log_time"}),
        "ts is array 'log_time', missing or of another field",
    ),
    "a negative count": (
        of_array("stats.num_steps", with_entry(-1)),
        "stats.num_steps=-1, where 0 or more",
    ),
    "a stop that is none": (
        of_array("stop_index", with_entry(3)),
        "stop_index=3, where -1 to -1",
    ),
    "a save less": (of_array("ts", lambda ts: ts[:-1]), "log_time=.*where an array Float"),
    "a shape for saves": (
        of_array("log_time", lambda rows: rows[:, None]),
        r"log_time=f64\[3,1\].*where an array Float",
    ),
    "an interval less": (
        of_array("log_interval", lambda rows: rows[:-1]),
        r"log_interval=.*where shape \(2,\)",
    ),
    "a record less": (
        of_array("records.norms", lambda rows: rows[:-1]),
        "records.norms=.*where a first axis of 3 saves",
    ),
    "a position less": (
        of_array("positions.matrices.0", lambda rows: rows[:-1]),
        "positions.matrices.0=.*where an array Float",
    ),
    "another width": (
        of_array("final_position.matrices.0", lambda rows: rows[:-1]),
        "positions=.*where 3 of what final_position is",
    ),
    "another precision": (
        of_array("log_time", lambda rows: rows.astype("float32")),
        "log_time=.*where the dtype float64 of ts",
    ),
    "whole numbers": (
        of_array("final_risk", lambda risk: np.asarray(1)),
        "final_risk=.*where an array Float",
    ),
    "times backwards": (of_array("ts", lambda ts: ts[::-1]), "ts=.*the earliest first"),
    "not a number": (
        of_array("positions.matrices.0", with_entry(np.nan)),
        "positions=.*where a number, as the solve succeeded",
    ),
    "data that are none": (
        of_array("flow.problem.data.x", with_entry(np.inf)),
        "flow.problem.data: x",
    ),
    "another state": (
        of_array("checkpoint.net.matrices.0", lambda rows: rows[:-1]),
        "checkpoint.net=.*where one of the flow's",
    ),
}


@pytest.mark.parametrize(("edit", "message"), FORGERIES.values(), ids=FORGERIES)
def test_edited_with_a_new_checksum(file, edit, message):
    forge(file, edit)
    expected = rf"run\.nc: no readable trajectory \(ValueError: {message}"
    with pytest.raises(ValueError, match=expected):
        gf.load(file)


def test_rewritten_as_it_was(file, traj):
    """No false alarm of the forger's own making."""
    forge(file, lambda tree, arrays: None)
    assert eqx.tree_equal(gf.load(file), traj)


def test_batches_are_looked_at_lane_by_lane(tmp_path):
    problem = gf.Problem(gf.data.xor(), gf.losses.squared)
    flow, solver = gf.EscapeFlow(problem), gf.solvers.Adaptive(rtol=1e-3)

    def solve(key: jax.Array) -> gf.Trajectory:
        net = gf.nets.MLP([2, 3, 1], key=key, scale=0.5)
        return gf.solve(flow, net, ts=[0.1, 0.2], solver=solver, throw=False)

    batch = jax.vmap(solve)(jax.random.split(jax.random.key(0), 3))
    file = tmp_path / "run.nc"
    batch.save(file)
    loaded = gf.load(file)
    assert jax.tree.structure(loaded) == jax.tree.structure(batch)
    assert loaded.batch_shape == (3,)
    forge(file, of_array("final_risk", lambda risk: risk[:2]))
    with pytest.raises(ValueError, match="final_risk=.*where an array Float"):
        gf.load(file)
    batch.save(file)
    forge(file, of_array("final_risk", with_entry(1e3)))
    with pytest.raises(ValueError, match="final_risk=.*that of the last position"):
        gf.load(file)


# Errors of saving


@pytest.mark.parametrize(
    ("place", "kind", "remedy"),
    [
        (
            "missing/run.nc",
            FileNotFoundError,
            "there is no folder .*missing; make",
        ),
        (
            "run.nc/run.nc",
            NotADirectoryError,
            r".*run\.nc is no folder; give a",
        ),
        ("folder", IsADirectoryError, "it is a folder; give the path of a file in it"),
        ("long" * 70, OSError, "its name is too long; give a shorter one"),
    ],
)
def test_places_where_no_file_can_be(traj, file, place, kind, remedy):
    folder = file.parent
    (folder / "folder").mkdir()
    path, before = folder / place, file.read_bytes()
    with pytest.raises(kind, match=f"{re.escape(str(path))} was not written: {remedy}"):
        traj.save(path)
    assert file.read_bytes() == before
    assert sorted(entry.name for entry in folder.iterdir()) == ["folder", "run.nc"]


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "the disk is full; free space there"),
        (errno.EDQUOT, "your quota is used up"),
        (errno.EFBIG, "files of this size are not allowed there"),
        (errno.EROFS, "is read-only; give a path in another folder"),
        (errno.EACCES, "you may not write to"),
        (errno.EIO, "check the disk, or give another path"),
    ],
)
def test_errors_of_the_system_keep_their_number(traj, file, monkeypatch, number, remedy):
    before = file.read_bytes()

    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match=f"^{re.escape(str(file))} was not") as raised:
        traj.save(file)
    assert remedy in str(raised.value) and raised.value.errno == number
    assert type(raised.value) is type(OSError(number, ""))
    assert file.read_bytes() == before
    assert [entry.name for entry in file.parent.iterdir()] == ["run.nc"]
