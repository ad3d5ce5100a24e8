"""Trajectories as files: exact, and clear when broken."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from storage_cases import (
    LOOSE,
    RECORD,
    assert_identical,
    classifying_escape,
    decaying_flow,
    descent,
    leftovers,
    localized_escape,
    made,
    plain_flow,
)

import gfdyn as gf


MAKERS = (decaying_flow, classifying_escape, plain_flow, localized_escape, descent)


@pytest.fixture(params=MAKERS, ids=lambda maker: maker.__name__)
def traj(request) -> gf.Trajectory:
    return made(request.param)


# --- Files -----------------------------------------------------------------------------


def test_round_trip_restores_every_bit(traj, tmp_path):
    path = tmp_path / "trajectory.nc"
    traj.save(path)
    loaded = gf.load(path)
    assert_identical(loaded, traj)
    assert loaded.summary() == traj.summary()
    assert loaded.stop_names == traj.stop_names
    assert loaded.stopped_by == traj.stopped_by
    assert bool(loaded.result == traj.result)
    assert repr(loaded.problem.loss) == repr(traj.problem.loss)
    assert leftovers(tmp_path) == []


def test_loaded_trajectory_works_on(tmp_path):
    """Measured again, it gives what it recorded; solved again, what it was."""
    traj = made(decaying_flow)
    traj.save(tmp_path / "trajectory.nc")
    loaded = gf.load(str(tmp_path / "trajectory.nc"))
    for name, function in RECORD.items():
        again = loaded.measure(function)
        for p, q in zip(
            jax.tree.leaves(again), jax.tree.leaves(traj.records[name]), strict=True
        ):
            np.testing.assert_array_equal(p, q)
    start = jax.tree.map(lambda rows: rows[0], loaded.net)
    repeated = gf.solve(loaded.flow, start, ts=loaded.ts, record=RECORD, solver=LOOSE)
    # What was compiled on the way is of the process, not of the flow.
    assert repeated.stats.pop("num_compilations") == 0
    assert traj.stats.pop("num_compilations") > 0
    assert_identical(repeated, traj)


def test_saving_twice_replaces_the_file(tmp_path):
    path = tmp_path / "trajectory.nc"
    made(plain_flow).save(path)
    made(descent).save(path)
    assert_identical(gf.load(path), made(descent))
    assert [entry.name for entry in tmp_path.iterdir()] == ["trajectory.nc"]


def test_save_names_the_file_in_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made(descent).save("here.nc")
    assert_identical(gf.load("here.nc"), made(descent))


def test_plain_xarray_reads_the_file(traj, tmp_path):
    path = tmp_path / "trajectory.nc"
    traj.save(path)
    with xr.open_dataset(path) as dataset:
        dataset.load()
    xr.testing.assert_identical(dataset, traj.to_xarray())


def test_file_may_be_read_by_whom_the_umask_allows(tmp_path):
    path = tmp_path / "trajectory.nc"
    previous = os.umask(0o022)
    try:
        made(descent).save(path)
    finally:
        os.umask(previous)
    assert path.stat().st_mode & 0o777 == 0o644


# --- Errors ----------------------------------------------------------------------------


def test_missing_file(tmp_path):
    path = tmp_path / "missing.nc"
    with pytest.raises(FileNotFoundError, match=r"missing\.nc: no such file; give one"):
        gf.load(path)


def test_folder_of_the_file_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing"):
        made(descent).save(tmp_path / "missing" / "trajectory.nc")


@pytest.mark.parametrize("content", [b"", b"\x89HDF", b"tau, risk\n0, 1\n" * 100])
def test_file_of_something_else(content, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"notes\.txt: no readable trajectory"):
        gf.load(path)


def test_folder_instead_of_a_file(tmp_path):
    with pytest.raises(ValueError, match="no readable trajectory"):
        gf.load(tmp_path)


@pytest.mark.parametrize("part", [0.001, 0.1, 0.5, 0.9, 0.999])
def test_truncated_file(tmp_path, part):
    path = tmp_path / "trajectory.nc"
    made(decaying_flow).save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    message = r"trajectory\.nc: no readable trajectory .* truncated, damaged"
    with pytest.raises(ValueError, match=message):
        gf.load(path)


def test_netcdf_file_of_something_else(tmp_path):
    path = tmp_path / "weather.nc"
    weather = xr.Dataset({"rain": ("day", np.arange(3.0))})
    weather.to_netcdf(path, engine="h5netcdf")
    with pytest.raises(ValueError, match=r"weather\.nc: no readable trajectory"):
        gf.load(path)


def test_dataset_without_the_state_is_no_trajectory(tmp_path):
    made(descent).to_xarray().to_netcdf(tmp_path / "dataset.nc", engine="h5netcdf")
    with pytest.raises(ValueError, match="was not written by traj.save"):
        gf.load(tmp_path / "dataset.nc")


@pytest.mark.parametrize("attributes", [{"format": 2, "fields": "{}"}, {}])
def test_unknown_format(tmp_path, attributes):
    path = tmp_path / "future.nc"
    number = attributes.get("format", "none")
    state = xr.Dataset(attrs=attributes)
    state.to_netcdf(path, engine="h5netcdf", group="state")
    message = rf"future\.nc: format {number}, but this version of gfdyn reads format 1\."
    with pytest.raises(ValueError, match=message):
        gf.load(path)


def with_state(path: Path, change: Callable[[dict], None], checksum: bool = False) -> None:
    """Rewrite the tree in the file of a trajectory, as an older file without a checksum
    unless that is to stay."""
    with h5py.File(path, "r+") as file:
        attributes = file["state"].attrs
        fields = json.loads(str(attributes["fields"]))
        change(fields)
        attributes["fields"] = json.dumps(fields)
        if not checksum:
            del attributes["checksum"]


CHANGES = {
    "a field is missing": lambda fields: fields.pop("ts"),
    "an array is missing": lambda fields: fields.update(ts={"array": "none"}),
    "a class is unknown": lambda fields: fields["flow"].update({"class": "Popen"}),
    "a result is unknown": lambda fields: fields.update(result={"result": "fine"}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_damaged_tree(tmp_path, change):
    path = tmp_path / "trajectory.nc"
    made(descent).save(path)
    with_state(path, change)
    with pytest.raises(ValueError, match=r"trajectory\.nc: no readable trajectory"):
        gf.load(path)


EDITS = {
    "times": lambda fields: fields.update(ts="evil"),
    "a class": lambda fields: fields["flow"].update({"class": "EscapeFlow"}),
    "a setting": lambda fields: fields["flow"]["fields"].update(clock="loss"),
    "a stop": lambda fields: fields.update(stop_names={"tuple": ["RiskBelow"]}),
}


@pytest.mark.parametrize("change", EDITS.values(), ids=EDITS)
def test_edited_metadata_are_noticed(tmp_path, change):
    path = tmp_path / "trajectory.nc"
    made(descent).save(path)
    with_state(path, change, checksum=True)
    with pytest.raises(ValueError, match="are not those of its checksum"):
        gf.load(path)


def test_files_without_a_checksum_load_with_a_note(tmp_path):
    path = tmp_path / "trajectory.nc"
    made(descent).save(path)
    with_state(path, lambda fields: None)
    with pytest.warns(UserWarning, match="before files had checksums; save it again"):
        assert_identical(gf.load(path), made(descent))


# A file that h5netcdf could not open has nothing to close, at which it stumbles.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_flipped_bit_changes_what_is_loaded(tmp_path):
    """Of 200: refused, or in what is not read."""
    path = tmp_path / "trajectory.nc"
    made(descent).save(path)
    content, rng = path.read_bytes(), np.random.default_rng(0)
    refused = 0
    for position in rng.integers(8 * len(content), size=200):
        flipped = bytearray(content)
        flipped[position // 8] ^= 1 << position % 8
        path.write_bytes(flipped)
        try:
            loaded = gf.load(path)
        except ValueError as error:
            refused += 1
            assert "trajectory.nc" in str(error)
        else:
            assert_identical(loaded, made(descent))
    assert refused > 20


@pytest.mark.parametrize("place", [0.0, 0.5, 0.999])
def test_what_is_broken_is_refused_before_hdf5_reads_it(tmp_path, monkeypatch, place):
    """It may read on for ever."""
    path = tmp_path / "trajectory.nc"
    made(descent).save(path)
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 1
    path.write_bytes(content)
    monkeypatch.setattr("h5py.File", None)
    with pytest.raises(ValueError, match="its bytes are not those of its checksum"):
        gf.load(path)


def test_double_precision_is_not_lost_silently(tmp_path):
    """Without x64 jax would make float32 of it."""
    path = tmp_path / "trajectory.nc"
    made(descent).save(path)
    jax.config.update("jax_enable_x64", False)
    try:
        with pytest.raises(ValueError, match="jax_enable_x64"):
            gf.load(path)
    finally:
        jax.config.update("jax_enable_x64", True)


class Foreign(gf.nets.AbstractNet):
    """A linear net that gfdyn has never heard of."""

    matrix: jax.Array

    @property
    def knows_kinks(self):
        return True

    @property
    def activations(self) -> tuple:
        return ()

    @property
    def weights(self) -> tuple:
        return (self.matrix,)

    @property
    def degree(self) -> int:
        return 1

    @property
    def in_size(self) -> int:
        return self.matrix.shape[-1]

    @property
    def out_size(self) -> int:
        return self.matrix.shape[-2]

    @property
    def parameter_names(self) -> tuple[str, ...]:
        return ("matrix",)

    def forward(self, x, gates) -> tuple:
        del gates
        return x @ self.matrix.T, ()

    def gradient_norms(self, x, values) -> tuple:
        del x, values
        return ()

    def conserved(self) -> tuple:
        return ()


def test_net_of_a_class_of_ones_own(tmp_path):
    path = tmp_path / "trajectory.nc"
    problem = gf.Problem(gf.data.xor(), gf.losses.squared)
    traj = gf.descend(problem, Foreign(jnp.ones((1, 2))), 0.1, 1)
    assert traj.to_xarray()["matrix"].dims == ("save", "output", "feature")
    path.write_text("what was there before")
    message = "positions is a Foreign, which gfdyn cannot write to a file; only its own"
    with pytest.raises(TypeError, match=message):
        traj.save(path)
    assert path.read_text() == "what was there before"
    assert leftovers(tmp_path) == []


def test_class_that_only_shares_a_name(tmp_path):
    """It would come back as another class."""
    namesake = type("MLP", (Foreign,), {})
    problem = gf.Problem(gf.data.xor(), gf.losses.squared)
    traj = gf.descend(problem, namesake(jnp.ones((1, 2))), 0.1, 1)
    with pytest.raises(TypeError, match="positions is a MLP"):
        traj.save(tmp_path / "trajectory.nc")
