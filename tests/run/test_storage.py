"""Trajectories as labelled datasets and as files: exact, atomic, and clear when broken."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import gfdyn as gf
from gfdyn._atomic import replace_atomically


RECORD = {
    "risk": gf.diagnostics.risk,
    "stable_rank": gf.diagnostics.stable_rank,
    "singular_values": partial(gf.diagnostics.singular_values, k=3),
    "alignment": gf.diagnostics.alignment,
    "neuron_balance": gf.diagnostics.neuron_balance,
    "kink_count": gf.diagnostics.kink_count,
}
LOOSE = gf.solvers.Adaptive(rtol=1e-3)


def decaying_flow() -> gf.Trajectory:
    """A GradientFlow with weight decay in float64, all kinds of records."""
    data = gf.data.teacher(9, [4, 3, 2], key=jax.random.key(1))
    net = gf.nets.MLP([4, 5, 6, 2], key=jax.random.key(0), scale=0.5)
    flow = gf.GradientFlow(gf.Problem(data, gf.losses.squared), weight_decay=0.01)
    ts = jnp.linspace(0, 1, 5)
    return gf.solve(flow, net, ts=ts, record=RECORD, solver=LOOSE)


def classifying_escape() -> gf.Trajectory:
    """An EscapeFlow of the cross-entropy, by a stop condition, all kinds of records."""
    x = jax.random.normal(jax.random.key(2), (9, 4))
    problem = gf.Problem(gf.Dataset(x, jnp.arange(9) % 3), gf.losses.cross_entropy)
    activations = ["leaky_relu(0.25)", "identity"]
    net = gf.nets.MLP([4, 5, 6, 3], key=jax.random.key(0), activation=activations)
    return gf.solve(
        gf.EscapeFlow(problem),
        gf.nets.scaled_to_norm(net, jnp.asarray(1e-3)),
        t1=jnp.inf,
        ts=gf.AcceptedSteps(8),
        record=RECORD,
        solver=LOOSE,
        stop=[gf.stopping.RadiusAbove(0.1), gf.stopping.RiskBelow(1.0)],
    )


def plain_flow() -> gf.Trajectory:
    """A GradientFlow in the clock of the loss in float32, without records, no hidden
    layer, and a weight decay that is an array."""
    data = gf.data.gaussian(6, 3, key=jax.random.key(1), dtype="float32")
    net = gf.nets.MLP([3, 1], key=jax.random.key(0), dtype="float32")
    problem = gf.Problem(data, gf.losses.squared, reduction="sum")
    decay = jnp.asarray(0.1, jnp.float32)
    flow = gf.GradientFlow(problem, weight_decay=decay, clock="loss")
    return gf.solve(flow, net, ts=[0.5], solver=LOOSE)


def localized_escape() -> gf.Trajectory:
    """A localized EscapeFlow in float32 that runs out of steps, with one record."""
    problem = gf.Problem(gf.data.circle(4, dtype="float32"), gf.losses.exponential)
    net = gf.nets.MLP([2, 4, 1], key=jax.random.key(0), dtype="float32")
    return gf.solve(
        gf.EscapeFlow(problem, localized=True),
        net,
        t1=50.0,
        ts=gf.AcceptedSteps(4),
        record={"direction": gf.diagnostics.direction},
        solver=LOOSE,
        max_steps=3,
        throw=False,
    )


def descent() -> gf.Trajectory:
    """Gradient descent on the logistic loss."""
    problem = gf.Problem(gf.data.xor(), gf.losses.logistic)
    net = gf.nets.MLP([2, 4, 1], key=jax.random.key(0), scale=0.5)
    return gf.descend(problem, net, 0.1, 4, save_every=2)


MAKERS = (decaying_flow, classifying_escape, plain_flow, localized_escape, descent)


@pytest.fixture(scope="module")
def made() -> Callable[[Callable[[], gf.Trajectory]], gf.Trajectory]:
    """Each trajectory once."""
    store: dict[Any, gf.Trajectory] = {}

    def get(maker: Callable[[], gf.Trajectory]) -> gf.Trajectory:
        if maker not in store:
            store[maker] = maker()
        return store[maker]

    return get


@pytest.fixture(params=MAKERS, ids=lambda maker: maker.__name__)
def traj(request, made) -> gf.Trajectory:
    return made(request.param)


def assert_identical(a: gf.Trajectory, b: gf.Trajectory) -> None:
    """The same structure, and every leaf the same to the bit."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for p, q in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert isinstance(p, float) == isinstance(q, float)
        p, q = np.asarray(p), np.asarray(q)
        assert (p.dtype, p.shape, p.tobytes()) == (q.dtype, q.shape, q.tobytes())


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


# Datasets


def test_dataset_of_a_gradient_flow(made):
    traj = made(decaying_flow)
    dataset = traj.to_xarray()
    dims = {
        "log_time": ("save",),
        "log_interval": ("interval",),
        "W1": ("save", "neuron_1", "feature"),
        "W2": ("save", "neuron_2", "neuron_1"),
        "W3": ("save", "output", "neuron_2"),
        "risk": ("save",),
        "stable_rank": ("save", "layer"),
        "singular_values": ("save", "layer", "singular_values_1"),
        "alignment": ("save", "hidden"),
        "kink_count": ("save", "hidden"),
        "neuron_balance_1": ("save", "neuron_balance_1_0"),
        "neuron_balance_2": ("save", "neuron_balance_2_0"),
    }
    assert {name: variable.dims for name, variable in dataset.items()} == dims
    sizes = {"save": 5, "interval": 4, "layer": 3, "hidden": 2, "neuron_1": 5}
    assert sizes.items() <= dataset.sizes.items()
    assert dataset["t"].dims == ("save",)
    assert dataset["t"].attrs["units"] == "physical time"
    np.testing.assert_array_equal(dataset["t"], traj.ts)
    for i, weight in enumerate(traj.net.weights, 1):
        np.testing.assert_array_equal(dataset[f"W{i}"], weight)
    for name in ("risk", "stable_rank", "singular_values", "alignment", "kink_count"):
        np.testing.assert_array_equal(dataset[name], traj.records[name])
    for i, balance in enumerate(traj.records["neuron_balance"], 1):
        np.testing.assert_array_equal(dataset[f"neuron_balance_{i}"], balance)
    assert dataset["log_time"].attrs["long_name"] == "log of physical time"
    assert "log_radius" not in dataset


def test_dataset_of_an_escape_flow(made):
    traj = made(classifying_escape)
    dataset = traj.to_xarray()
    assert dataset["tau"].dims == ("save",) and "t" not in dataset.coords
    assert dataset["tau"].attrs["units"] == "clock of the flow"
    assert dataset["log_radius"].dims == ("save",)
    assert dataset["log_radius"].attrs["long_name"] == "log r, r = ‖θ‖/√L"
    np.testing.assert_array_equal(dataset["log_radius"], traj.log_radius)
    for i, weight in enumerate(traj.direction.weights, 1):
        np.testing.assert_array_equal(dataset[f"W{i}"], weight)
    square = sum((dataset[f"W{i}"].values ** 2).sum(axis=(1, 2)) for i in (1, 2, 3))
    np.testing.assert_allclose(square, 3.0, rtol=1e-12)
    assert dataset.sizes["interval"] == dataset.sizes["save"] - 1


@pytest.mark.parametrize("maker", [decaying_flow, classifying_escape])
def test_layers_are_counted_from_one(made, maker):
    """`.sel(layer=1)` is W_1, as in the papers."""
    dataset = made(maker).to_xarray()
    assert dataset["layer"].values.tolist() == [1, 2, 3]
    assert dataset["hidden"].values.tolist() == [1, 2]
    first = dataset["stable_rank"].sel(layer=1)
    np.testing.assert_array_equal(first, made(maker).records["stable_rank"][:, 0])


def test_attributes_say_what_was_solved_and_how_it_went(made):
    traj = made(classifying_escape)
    attributes = traj.to_xarray().attrs
    assert attributes["flow"].startswith("EscapeFlow(")
    assert "CrossEntropy" in attributes["flow"] and "f64[9,4]" in attributes["flow"]
    assert attributes["net"].startswith("MLP(") and "\n" not in attributes["net"]
    assert attributes["stopped_by"] == traj.stopped_by == "RadiusAbove"
    assert attributes["result"] == "stopped"
    assert attributes["final_time"] == float(traj.final_time)
    assert attributes["final_log_time"] == float(traj.final_log_time)
    assert attributes["num_steps"] == int(traj.stats["num_steps"]) > 0
    assert set(traj.stats) <= set(attributes)
    for name in ("energy_residual", "balance_drift", "risk_increase"):
        assert attributes[name] == float(getattr(traj.certificate, name))


def test_attributes_name_a_failure(made):
    attributes = made(localized_escape).to_xarray().attrs
    assert "maximum number of solver steps" in attributes["result"]
    assert attributes["stopped_by"] == ""


def test_records_that_are_trees_get_a_name_for_each_leaf(made):
    dataset = made(localized_escape).to_xarray()
    direction = made(localized_escape).records["direction"].weights
    for i, weight in enumerate(direction, 1):
        np.testing.assert_array_equal(dataset[f"direction_matrices_{i}"], weight)
        assert dataset[f"direction_matrices_{i}"].dtype == np.float32


def test_dataset_of_a_net_without_hidden_layers(made):
    dataset = made(plain_flow).to_xarray()
    assert dataset["W1"].dims == ("save", "output", "feature")
    assert dataset.sizes["save"] == 1 and dataset.sizes["interval"] == 0


# Files


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


def test_loaded_trajectory_works_on(made, tmp_path):
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


def test_saving_twice_replaces_the_file(made, tmp_path):
    path = tmp_path / "trajectory.nc"
    made(plain_flow).save(path)
    made(descent).save(path)
    assert_identical(gf.load(path), made(descent))
    assert [entry.name for entry in tmp_path.iterdir()] == ["trajectory.nc"]


def test_save_names_the_file_in_the_working_directory(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made(descent).save("here.nc")
    assert_identical(gf.load("here.nc"), made(descent))


def test_plain_xarray_reads_the_file(traj, tmp_path):
    path = tmp_path / "trajectory.nc"
    traj.save(path)
    with xr.open_dataset(path) as dataset:
        dataset.load()
    xr.testing.assert_identical(dataset, traj.to_xarray())


def test_file_may_be_read_by_whom_the_umask_allows(made, tmp_path):
    path = tmp_path / "trajectory.nc"
    previous = os.umask(0o022)
    try:
        made(descent).save(path)
    finally:
        os.umask(previous)
    assert path.stat().st_mode & 0o777 == 0o644


# Errors


def test_missing_file(tmp_path):
    path = tmp_path / "missing.nc"
    with pytest.raises(FileNotFoundError, match=r"missing\.nc: no such file; give one"):
        gf.load(path)


def test_folder_of_the_file_is_missing(made, tmp_path):
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
def test_truncated_file(made, tmp_path, part):
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


def test_dataset_without_the_state_is_no_trajectory(made, tmp_path):
    made(descent).to_xarray().to_netcdf(tmp_path / "dataset.nc", engine="h5netcdf")
    with pytest.raises(ValueError, match="was not written by traj.save"):
        gf.load(tmp_path / "dataset.nc")


@pytest.mark.parametrize("number", [2, None])
def test_unknown_format(tmp_path, number):
    path = tmp_path / "future.nc"
    attributes = {} if number is None else {"format": number, "fields": "{}"}
    state = xr.Dataset(attrs=attributes)
    state.to_netcdf(path, engine="h5netcdf", group="state")
    message = rf"future\.nc: format {number}, but this version of gfdyn reads format 1\."
    with pytest.raises(ValueError, match=message):
        gf.load(path)


def with_state(path: Path, change: Callable[[dict], None], checksum: bool = False) -> None:
    """Rewrite the tree in the file of a trajectory, as an older file without a checksum
    unless that is to stay."""
    with xr.open_dataset(path, group="state", engine="h5netcdf") as state:
        state.load()
    fields = json.loads(state.attrs["fields"])
    change(fields)
    state.attrs["fields"] = json.dumps(fields)
    if not checksum:
        del state.attrs["checksum"]
    path.unlink()
    state.to_netcdf(path, group="state", engine="h5netcdf")


CHANGES = {
    "a field is missing": lambda fields: fields.pop("ts"),
    "an array is missing": lambda fields: fields.update(ts={"array": "none"}),
    "a class is unknown": lambda fields: fields["flow"].update({"class": "Popen"}),
    "a result is unknown": lambda fields: fields.update(result={"result": "fine"}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_damaged_tree(made, tmp_path, change):
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
def test_edited_metadata_are_noticed(made, tmp_path, change):
    path = tmp_path / "trajectory.nc"
    made(descent).save(path)
    with_state(path, change, checksum=True)
    with pytest.raises(ValueError, match="are not those of its checksum"):
        gf.load(path)


def test_files_without_a_checksum_load_with_a_note(made, tmp_path):
    path = tmp_path / "trajectory.nc"
    made(descent).save(path)
    with_state(path, lambda fields: None)
    with pytest.warns(UserWarning, match="before files had checksums; save it again"):
        assert_identical(gf.load(path), made(descent))


# A file that h5netcdf could not open has nothing to close, at which it stumbles.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_flipped_bit_changes_what_is_loaded(made, tmp_path):
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


def test_double_precision_is_not_lost_silently(made, tmp_path):
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
    assert traj.to_xarray()["matrix"].dims == ("save", "matrix_0", "matrix_1")
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


# Atomic replacement


def test_failing_writer_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def write(temporary: Path) -> None:
        temporary.write_text("half of the n")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        replace_atomically(path, write)
    assert path.read_text() == "old"
    assert leftovers(tmp_path) == []


def test_writer_sees_the_old_file_until_it_returns(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def write(temporary: Path) -> None:
        assert temporary.parent == path.parent and temporary != path
        temporary.write_text("new")
        assert path.read_text() == "old"

    replace_atomically(path, write)
    assert path.read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_failing_save_leaves_the_old_file(made, tmp_path, monkeypatch):
    path = tmp_path / "trajectory.nc"
    made(descent).save(path)

    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match="disk full"):
        made(plain_flow).save(path)
    assert leftovers(tmp_path) == []
    assert_identical(gf.load(path), made(descent))


def child(code: str, *arguments: Path) -> subprocess.Popen[str]:
    """Python in another process, waited for until it says `ready`."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=os.environ | {"JAX_ENABLE_X64": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if line != "ready\n":
        process.kill()
        process.communicate()
    assert line == "ready\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    """As `kill -9` does."""
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL


SAVE_AGAIN_AND_AGAIN = """
import sys
import gfdyn as gf
first, second, path = sys.argv[1:]
trajectories = gf.load(first), gf.load(second)
trajectories[0].save(path)
print("ready", flush=True)
while True:
    for trajectory in reversed(trajectories):
        trajectory.save(path)
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_killed_while_saving(made, tmp_path, seed):
    """Whenever the process dies, one of the two trajectories is there, whole."""
    candidates = made(decaying_flow), made(classifying_escape)
    for i, candidate in enumerate(candidates):
        candidate.save(tmp_path / f"{i}.nc")
    path = tmp_path / "trajectory.nc"
    arguments = tmp_path / "0.nc", tmp_path / "1.nc", path
    process = child(SAVE_AGAIN_AND_AGAIN, *arguments)
    delay = np.random.default_rng(seed).uniform(0, 0.5)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=delay)
    kill(process)
    loaded = gf.load(path)
    same = [type(loaded.flow) is type(candidate.flow) for candidate in candidates]
    assert_identical(loaded, candidates[same.index(True)])


WRITE_SLOWLY = """
import sys, time
from gfdyn._atomic import replace_atomically

def write(temporary):
    with open(temporary, "w") as file:
        file.write("half of the ")
        file.flush()
        print("ready", flush=True)
        time.sleep(600)
        file.write("new")

replace_atomically(sys.argv[1], write)
"""


@pytest.mark.slow
def test_killed_in_the_middle_of_the_file(made, tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    process = child(WRITE_SLOWLY, path)
    (temporary,) = leftovers(tmp_path)
    assert (tmp_path / temporary).read_text() == "half of the "
    kill(process)
    assert path.read_text() == "old"
    # What it left goes with the next save into the folder; what is written there stays.
    writing = child(WRITE_SLOWLY, tmp_path / "other")
    made(descent).save(tmp_path / "trajectory.nc")
    (left,) = leftovers(tmp_path)
    assert left != temporary and left.startswith(".other.")
    kill(writing)
