"""Sweeps in this process: what is computed, kept, resumed, rejected and collected."""

import dataclasses
import errno
import json
import os
import shutil
import threading
import time
import tracemalloc
from functools import partial
from pathlib import Path

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from fixtures import sweep_files

import gfdyn as gf
from gfdyn.cli import _main as cli
from gfdyn.sweeps.results._store import Store, _checksum
from gfdyn.sweeps.run import _compute
from gfdyn.sweeps.spec._plan import make_plan, resolved


S = gf.sweeps

PROBLEM = S.ProblemSettings(samples=6, teacher=(3, 2, 1))
DESCENTS = S.Spec(
    problem=PROBLEM,
    net=S.NetSettings(width=3, depth=2, init_scale=1.0),
    run=S.DescentSettings(learning_rate=0.05, steps=30),
    records=("risk", "layer_norms"),
    max_saves=8,
    axes={"net.init_scale": (1.0, 0.1), "net.depth": (2, 3), "net.seed": (0, 1)},
    engine=S.EngineSettings(checkpoint_every=8),
)
FLOWS = S.Spec(
    problem=PROBLEM,
    net=S.NetSettings(width=3, depth=2),
    run=S.EscapeSettings(tau_max=15.0),
    solver=S.SolverSettings(name="adaptive", rtol=1e-3, max_steps=200),
    records=("risk",),
    max_saves=8,
    axes={"net.init_scale": (1.0, 1e-3)},
    engine=S.EngineSettings(checkpoint_every=3),
)
run = partial(S.run, progress=False)


def leftovers(out: Path) -> list[Path]:
    """Temporary files and checkpoints."""
    return [*out.rglob(".*"), *(out / "checkpoints").iterdir()]


@pytest.fixture(scope="module")
def descents(tmp_path_factory):
    """A finished sweep of descents."""
    out = tmp_path_factory.mktemp("sweeps") / "descents"
    assert run(DESCENTS, out) == S.Status(8, {"successful": 8}, 0)
    return out


@pytest.fixture(scope="module")
def flows(tmp_path_factory):
    """A finished sweep of flows."""
    out = tmp_path_factory.mktemp("sweeps") / "flows"
    assert run(FLOWS, out).done == 2
    return out


def problem_and_net(scale: float, depth: int, seed: int) -> tuple[gf.Problem, gf.nets.MLP]:
    """What the settings mean, written out."""

    def key(seed: int, use: int) -> jax.Array:
        return jax.random.fold_in(jax.random.key(seed), use)

    data = gf.data.teacher(6, [3, 2, 1], key=key(0, 0), dtype="float64")
    net = gf.nets.MLP([3, *[3] * (depth - 1), 1], key=key(seed, 1), dtype=jnp.float64)
    scaled = gf.nets.scaled_to_norm(net, jnp.asarray(scale))
    return gf.Problem(data, gf.losses.squared), scaled


def test_descents_are_those_of_descend(descents):
    tree = S.collect(descents)
    problem, net = problem_and_net(0.1, 3, 1)
    traj = gf.descend(
        problem, net, 0.05, 30, save_every=4, record={"r": gf.diagnostics.risk}
    )
    found = tree["depth=3"].to_dataset().sel(init_scale=0.1, depth=3, seed=1)
    np.testing.assert_allclose(found.t, traj.ts, rtol=1e-12)
    np.testing.assert_allclose(found.risk, traj.records["r"], rtol=1e-10)
    assert float(found.final_risk) == pytest.approx(float(traj.final_risk), rel=1e-10)
    assert found.result == "successful" and found.num_steps == 30


def test_flows_are_those_of_solve(flows):
    found = S.collect(flows)
    for scale in (1.0, 1e-3):
        problem, net = problem_and_net(scale, 2, 0)
        traj = gf.solve(
            gf.EscapeFlow(problem),
            net,
            15.0,
            ts=gf.AcceptedSteps(8),
            stop=gf.stopping.NextPlateau(1e-3),
            solver=gf.solvers.Adaptive(rtol=1e-3),
            derivatives="forward",
        )
        point = found.sel(init_scale=scale).dropna("save", subset=["tau"])
        np.testing.assert_allclose(point.tau, traj.ts, rtol=1e-10)
        np.testing.assert_allclose(point.log_radius, traj.log_radius, rtol=1e-8, atol=1e-8)
        assert point.num_steps == int(traj.stats["num_steps"])
        assert point.result == ("stopped" if traj.stopped_by else "successful")


def count_compilations(counted: list[str]) -> None:
    """From now on, note each program that is compiled."""

    def listen(event: str, duration_secs: float, **_: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            counted.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)


def test_one_program_a_shape(descents, tmp_path, unhooked):
    """Another 200 points of the two shapes compile nothing; a third shape does."""
    counted: list[str] = []
    count_compilations(counted)
    try:
        axes = {"net.seed": tuple(range(7, 57)), "net.depth": (2, 3)}
        axes["run.learning_rate"] = (0.01, 0.02)
        assert run(dataclasses.replace(DESCENTS, axes=axes), tmp_path / "a").ok == 200
        assert counted == []
        narrow = dataclasses.replace(DESCENTS, axes={"net.width": (2,)})
        run(narrow, tmp_path / "b")
        assert counted
    finally:
        jax.monitoring.clear_event_listeners()


def test_each_batch_makes_room(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(_compute, "make_room", lambda: calls.append(None))
    run(dataclasses.replace(DESCENTS, axes={"net.seed": (0, 1, 2)}), tmp_path)
    assert len(calls) == 3


@pytest.mark.parametrize("kind", ["descents", "flows"])
def test_resumes_to_the_last_bit(kind, request, tmp_path, monkeypatch, capsys):
    """Stopped at each checkpoint, begun again as often."""
    spec = {"descents": DESCENTS, "flows": FLOWS}[kind]
    undisturbed = request.getfixturevalue(kind)
    write, read = Store.write_checkpoint, Store.read_checkpoint
    states = []

    def write_and_stop(self, digest, state):
        write(self, digest, state)
        raise KeyboardInterrupt

    def read_and_note(self, digest, like):
        states.append(read(self, digest, like))
        return states[-1]

    monkeypatch.setattr(Store, "write_checkpoint", write_and_stop)
    monkeypatch.setattr(Store, "read_checkpoint", read_and_note)
    out = tmp_path / "out"
    stops = 0
    while stops < 100:
        try:
            run(spec, out)
            break
        except KeyboardInterrupt:
            stops += 1
            assert f"gfdyn sweep {out}/spec.toml --out {out}" in capsys.readouterr().out
            assert S.status(out).under_way == 1
    # Portions of 2 rows of 4 steps: three stops each of the 8 descents.
    assert stops == 24 if kind == "descents" else stops >= 2
    assert sum(state is not None for state in states) == stops
    assert sweep_files(out) == sweep_files(undisturbed)
    assert leftovers(out) == []


def test_damaged_checkpoints_are_not_used(descents, tmp_path, monkeypatch):
    out = tmp_path / "out"
    write = Store.write_checkpoint

    def write_damaged(self, digest, state):
        write(self, digest, state)
        file = self.checkpoints / f"{digest}.eqx"
        content = bytearray(file.read_bytes())
        content[-3] ^= 1
        file.write_bytes(content)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Store, "write_checkpoint", write_damaged)
        run(DESCENTS, out)
    run(DESCENTS, out)
    assert sweep_files(out) == sweep_files(descents)


def test_bad_files_are_named_and_computed_anew(descents, tmp_path):
    out = tmp_path / "out"
    run(DESCENTS, out)
    first, second, third, fourth, *_ = Store(out).point_files()
    truncated, tampered, gone = first.path, second.path, third.path
    truncated.write_bytes(truncated.read_bytes()[:-100])
    content = bytearray(tampered.read_bytes())
    content[len(content) // 2] ^= 1
    tampered.write_bytes(content)
    # Another point's result in the place of one.
    foreign = gone.with_name(fourth.path.name.replace(fourth.digest, third.digest))
    gone.unlink()
    foreign.write_bytes(fourth.path.read_bytes())
    stranger = out / "points" / "notes.txt"
    stranger.write_text("mine")
    other = out / "points" / f"{'0' * 16}-{'1' * 16}.stopped.nc"
    other.write_bytes(b"of another sweep")
    assert run(DESCENTS, out).ok == 8
    log = (out / "log.txt").read_text()
    for file in (truncated, tampered, foreign):
        assert f"{file}: truncated or tampered with; moved to rejected/" in log
        assert (out / "rejected" / file.name).exists()
    for file in (stranger, other):
        assert f"{file}: foreign" in log and file.exists()
    stranger.unlink()
    other.unlink()
    assert sweep_files(out) == sweep_files(descents)


def test_temporary_files_are_cleared_away(descents, tmp_path):
    out = tmp_path / "out"
    run(DESCENTS, out)
    for folder in ("points", "checkpoints", "failures", "."):
        (out / folder / f".x.nc.{'a' * 16}").write_bytes(b"half a file")
    run(DESCENTS, out)
    assert leftovers(out) == []


def test_two_sweeps_in_one_folder(descents, tmp_path):
    out = tmp_path / "out"
    threads = [threading.Thread(target=run, args=(DESCENTS, out)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sweep_files(out) == sweep_files(descents)
    assert leftovers(out) == []


def test_a_temporary_file_taken_away_is_written_again(tmp_path, monkeypatch):
    store = Store(tmp_path)
    store.create()
    replace, taken = Path.replace, []

    def replace_after_theft(self, target):
        if not taken:
            taken.append(self)
            self.unlink()
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", replace_after_theft)
    store.write_failure("0" * 16, "why")
    assert taken and store.read_failures() == {"0" * 16: "why"}


def test_failing_points_are_rows(descents, tmp_path, unhooked):
    """One diverges, one would need a file that is not there; the rest goes on."""
    axes = {"run.learning_rate": (0.05, 1e6), "net.seed": (0, 1)}
    spec = dataclasses.replace(DESCENTS, axes=axes)
    status = run(spec, tmp_path / "a")
    assert status.results == {"successful": 2, "diverged": 2} and status.done == 4
    table = S.outcomes(tmp_path / "a").sel(learning_rate=1e6)
    assert table.result.values.tolist() == ["diverged"] * 2
    assert all("became NaN or infinite" in reason for reason in table.reason.values)
    # Results stay as they are.
    log = tmp_path / "a" / "log.txt"
    run(spec, tmp_path / "a")
    assert "4 points, 0 of them to compute" in log.read_text()
    missing = dataclasses.replace(PROBLEM, path=str(tmp_path / "none.npz"))
    axes = {"problem.data": ("teacher", "mnist"), "net.seed": (0,)}
    spec = dataclasses.replace(DESCENTS, problem=missing, axes=axes)
    assert run(spec, tmp_path / "b").results == {"successful": 1, "error": 1}
    table = S.outcomes(tmp_path / "b").sel(data="mnist", seed=0)
    assert table.result == "error" and "none.npz" in str(table.reason.values)
    # What could not be computed is tried again.
    run(spec, tmp_path / "b")
    assert "2 points, 1 of them to compute" in (tmp_path / "b" / "log.txt").read_text()


def test_flows_that_fail_say_why(flows, tmp_path):
    """No tolerance is that tight: time stalls; and two steps are not enough."""
    axes = {"solver.rtol": (1e-3, 1e-16)}
    spec = dataclasses.replace(
        FLOWS, axes=axes, net=S.NetSettings(width=3, depth=2, init_scale=1e5)
    )
    run(spec, tmp_path / "a")
    table = S.outcomes(tmp_path / "a").sel(rtol=1e-16)
    assert table.result in ("time_stalled", "max_steps_reached")
    solver = dataclasses.replace(FLOWS.solver, max_steps=2)
    run(dataclasses.replace(FLOWS, solver=solver, axes={}), tmp_path / "b")
    table = S.outcomes(tmp_path / "b")
    assert table.result == "max_steps_reached" and "steps" in str(table.reason.values)


def test_lanes_agree_with_single_runs(descents, tmp_path):
    """Batches of three lanes, the last one filled up."""
    engine = dataclasses.replace(DESCENTS.engine, lanes=3)
    axes = {"net.init_scale": (1.0, 0.1), "net.seed": (0, 1)}
    spec = dataclasses.replace(DESCENTS, engine=engine, axes=axes)
    run(spec, tmp_path)
    single = S.collect(descents)["depth=2"].to_dataset().isel(depth=0)
    xr.testing.assert_allclose(S.collect(tmp_path).risk, single.risk.drop_vars("depth"))


@pytest.mark.parametrize("solver", ["adaptive", "exact"])
def test_lanes_of_flows_agree_with_single_runs(solver, flows, tmp_path):
    """Each lane takes steps of its own, and waits for the longest one."""
    spec = dataclasses.replace(FLOWS, solver=dataclasses.replace(FLOWS.solver, name=solver))
    alone = flows
    if solver == "exact":
        alone = tmp_path / "alone"
        run(spec, alone)
    side_by_side = dataclasses.replace(FLOWS.engine, lanes=2)
    run(dataclasses.replace(spec, engine=side_by_side), tmp_path / "lanes")
    expected, found = S.collect(alone), S.collect(tmp_path / "lanes")
    assert len(set(expected.num_steps.values)) == 2
    for name in ("num_steps", "num_rejected", "num_crossings", "num_slides", "result"):
        np.testing.assert_array_equal(found[name], expected[name])
    for name in ("tau", "log_radius", "log_time", "risk", "final_risk"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-8, atol=1e-8)


def test_full_disk(descents, tmp_path, monkeypatch):
    """Here by an error of the fifth write; on a real one in test_sweep_engines.py."""
    write, count = Path.write_bytes, []

    def write_until_full(self, content):
        count.append(self)
        if len(count) > 4:
            write(self, content[:10])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, content)

    out = tmp_path / "out"
    spec = dataclasses.replace(DESCENTS, engine=S.EngineSettings())
    with monkeypatch.context() as patch, pytest.raises(OSError) as error:
        patch.setattr(Path, "write_bytes", write_until_full)
        run(spec, out)
    assert f"no space left in {out}. Free some. What is done is kept" in str(error.value)
    assert 0 < len(sweep_files(out)) < 8 and leftovers(out) == []
    assert run(spec, out).ok == 8


def test_a_folder_is_of_one_sweep(descents):
    wider = dataclasses.replace(DESCENTS, net=S.NetSettings(width=4, depth=2))
    with pytest.raises(ValueError, match=r"another sweep, with net.init_scale=1.0 where"):
        run(wider, descents)
    swapped = dict(reversed(list(DESCENTS.axes.items())))
    with pytest.raises(ValueError, match="axes in the order"):
        run(dataclasses.replace(DESCENTS, axes=swapped), descents)
    elsewhere = dataclasses.replace(DESCENTS.engine, name="processes", workers=3)
    # No workers are started where nothing is missing.
    assert run(dataclasses.replace(DESCENTS, engine=elsewhere), descents).ok == 8


def test_precision_is_the_users(tmp_path):
    with jax.enable_x64(False), pytest.raises(ValueError, match='"jax_enable_x64", True'):
        run(DESCENTS, tmp_path)


def finished(out: Path, num_seeds: int) -> S.Spec:
    """A folder with a sound file for each of 20 · `num_seeds` points."""
    axes = {
        "net.init_scale": S.log(10.0, 1e-30, 4),
        "net.depth": (2, 3, 4, 5, 6),
        "net.seed": S.seeds(num_seeds),
    }
    spec = resolved(dataclasses.replace(DESCENTS, axes=axes))
    store = Store(out)
    store.create()
    rows = {"risk": ("save", np.zeros(9))}
    content = bytes(xr.Dataset(rows, attrs={"reason": ""}).to_netcdf(engine="scipy"))
    for digest in make_plan(spec).places:
        name = f"{digest}-{_checksum(digest, 'successful', content)}.successful.nc"
        store.points.joinpath(name).write_bytes(content)
    return spec


def test_ten_thousand_points_are_resumed_in_seconds(tmp_path, unhooked):
    """In seconds of this process; on a share of them, in memory that stays flat."""
    spec = finished(tmp_path / "a", 500)
    assert len(spec) == 10_000
    started = time.process_time()
    assert run(spec, tmp_path / "a").ok == 10_000
    assert time.process_time() - started < 20
    # Tracing makes it ten times slower.
    share = finished(tmp_path / "b", 20)
    tracemalloc.start()
    run(share, tmp_path / "b")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 6e3 * len(share)


def test_manifest(descents):
    manifest = json.loads((descents / "manifest.json").read_text())
    assert manifest["versions"]["gfdyn"] == gf.__version__
    assert set(manifest) == {"versions", "python", "machine", "git", "x64"}
    assert manifest["x64"] is True


UNKNOWN = "no manifest.json says which versions computed the points that are there"
REMEDY = (
    "give a folder of its own, or go on all the same with mix_versions=True "
    "(--mix-versions), as the manifest will say."
)


def make_other(manifest: Path, kind: str) -> tuple[str, str]:
    """A manifest of other versions, or of none that are known: what is said of it, and
    what the mixture is called."""
    content = json.loads(manifest.read_text())
    now = dict(content["versions"])
    if kind in ("gfdyn", "jax", "jaxlib"):
        content["versions"][kind] = "0.0.1"
        said = (
            f"its points were computed with {kind}=0.0.1 where this process has {now[kind]}"
        )
    elif kind == "x64":
        content["x64"] = False
        said = "its points were computed with x64=False where this process has True"
    else:
        said = UNKNOWN
    manifest.unlink()
    if kind == "torn":
        manifest.write_text(json.dumps(content)[:40])
    elif kind == "a folder":
        manifest.mkdir()
    elif kind == "a dangling link":
        manifest.symlink_to(manifest.with_name("nowhere"))
    elif kind != "missing":
        manifest.write_text(json.dumps(content))
    versions = {name: content["versions"][name] for name in ("gfdyn", "jax", "jaxlib")}
    labels = ", ".join(f"{n} {v}" for n, v in versions.items()) + f", x64 {content['x64']}"
    return said, "unknown versions" if said == UNKNOWN else labels


KINDS = ("gfdyn", "jax", "jaxlib", "x64", "missing", "torn", "a folder", "a dangling link")


@pytest.mark.parametrize("kind", KINDS)
def test_versions_are_not_mixed_unasked(kind, descents, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(descents, out)
    next(Store(out).point_files()).path.unlink()
    before = sweep_files(out)
    said, label = make_other(out / "manifest.json", kind)
    with pytest.raises(ValueError) as error:
        run(DESCENTS, out)
    assert str(error.value) == f"{out}: {said}; {REMEDY}"
    assert sweep_files(out) == before
    status = run(DESCENTS, out, mix_versions=True)
    assert status.ok == 8 and sweep_files(out) == sweep_files(descents)
    assert status.mixture.startswith(f"{label}; gfdyn {gf.__version__}, jax ")
    assert str(S.status(out)) == (
        f"8 of 8 points done, 8 successful; of mixed versions: {status.mixture}"
    )
    assert f"mix_versions: {said}" in (out / "log.txt").read_text()
    manifest = json.loads((out / "manifest.json").read_text())
    assert len(manifest["before"]) == 1
    assert manifest["versions"]["gfdyn"] == gf.__version__
    assert f'"mixture": "{status.mixture}"' in S.report(out).read_text()
    # From here on these are the versions of the folder.
    next(Store(out).point_files()).path.unlink()
    assert run(DESCENTS, out).mixture == status.mixture


def test_versions_are_mixed_more_than_once(descents, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(descents, out)
    for kind in ("jax", "missing", "gfdyn"):
        next(Store(out).point_files()).path.unlink()
        make_other(out / "manifest.json", kind)
        found = run(DESCENTS, out, mix_versions=True).mixture
    # What was before the manifest was lost is lost.
    first, second, third = found.split("; ")
    assert first == "unknown versions"
    assert second.startswith("gfdyn 0.0.1, ") and third.startswith(
        f"gfdyn {gf.__version__}"
    )


def test_where_nothing_is_mixed_any_version_goes_on(descents, tmp_path):
    """A sweep that is done, and one that has not begun."""
    done, bare = tmp_path / "done", tmp_path / "bare"
    shutil.copytree(descents, done)
    make_other(done / "manifest.json", "jax")
    assert run(DESCENTS, done).ok == 8
    bare.mkdir()
    for name in ("spec.toml", "manifest.json"):
        shutil.copy(descents / name, bare)
    make_other(bare / "manifest.json", "jax")
    found = run(DESCENTS, bare)
    assert found.ok == 8 and found.mixture == ""
    manifest = (bare / "manifest.json").read_text()
    assert manifest == (descents / "manifest.json").read_text()


def test_manifests_without_precision_are_of_any(descents, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(descents, out)
    next(Store(out).point_files()).path.unlink()
    manifest = json.loads((out / "manifest.json").read_text())
    del manifest["x64"]
    (out / "manifest.json").write_text(json.dumps(manifest))
    assert run(DESCENTS, out).mixture == ""


def test_batches_under_way_are_of_a_version(tmp_path, monkeypatch):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    write = Store.write_checkpoint
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Store, "write_checkpoint", lambda *a: stop(write(*a)))
        run(DESCENTS, tmp_path)
    assert S.status(tmp_path).done == 0 and S.status(tmp_path).under_way == 1
    make_other(tmp_path / "manifest.json", "jaxlib")
    with pytest.raises(ValueError, match="computed with jaxlib=0.0.1 where this process"):
        run(DESCENTS, tmp_path)


def make_unreadable(file: Path, kind: str) -> None:
    """A dangling link, a circle of links, a folder with something in it, or a torn file in
    the place of one."""
    content = file.read_bytes()
    file.unlink()
    if kind == "link":
        file.symlink_to(file.with_name("nowhere"))
    elif kind == "circle":
        file.symlink_to(file)
    elif kind == "folder":
        (file / "inside").mkdir(parents=True)
    else:
        file.write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize("kind", ["link", "circle", "folder", "torn"])
def test_unreadable_points_are_computed_anew(kind, descents, tmp_path, capsys):
    out = tmp_path / "out"
    shutil.copytree(descents, out)
    file = next(Store(out).point_files()).path
    for name in (file.name, f"{file.name}.2"):
        make_unreadable(file, kind)
        assert run(DESCENTS, out).ok == 8
        why = "truncated or tampered with" if kind == "torn" else "cannot be read"
        line = f"{file}: {why}; moved to rejected/"
        assert capsys.readouterr().err == line + "\n"
        assert os.path.lexists(out / "rejected" / name)
    assert (out / "log.txt").read_text().count(line) == 2
    assert sweep_files(out) == sweep_files(descents)


@pytest.mark.parametrize("kind", ["link", "circle", "folder", "torn"])
@pytest.mark.parametrize("done", [True, False])
def test_unreadable_failures_are_set_aside(kind, done, descents, tmp_path, capsys):
    """Until then they are failures for which there is no reason."""
    out = tmp_path / "out"
    shutil.copytree(descents, out)
    first = next(Store(out).point_files())
    if not done:
        first.path.unlink()
    file = out / "failures" / f"{first.digest}.json"
    Store(out).write_failure(first.digest, "its worker was killed")
    make_unreadable(file, kind)
    assert S.status(out).results.get("error", 0) == (not done)
    reasons = {"the file that says why cannot be read"} if not done else set()
    assert reasons <= set(S.outcomes(out).reason.values.ravel().tolist())
    assert run(DESCENTS, out).results == {"successful": 8}
    line = f"{file}: cannot be read; moved to rejected/"
    assert capsys.readouterr().err == line + "\n"
    assert line in (out / "log.txt").read_text()
    assert os.path.lexists(out / "rejected" / file.name) and not os.path.lexists(file)
    assert sweep_files(out) == sweep_files(descents)


def test_a_folder_in_the_place_of_a_checkpoint(descents, tmp_path, capsys):
    out = tmp_path / "out"
    shutil.copytree(descents, out)
    file = next(Store(out).point_files())
    file.path.unlink()
    batch = next(
        b for b in make_plan(resolved(DESCENTS)).batches if file.digest in b.digests
    )
    checkpoint = out / "checkpoints" / f"{batch.digest}.eqx"
    checkpoint.mkdir()
    assert run(DESCENTS, out).ok == 8
    assert capsys.readouterr().err == f"{checkpoint}: cannot be read; moved to rejected/\n"
    assert sweep_files(out) == sweep_files(descents) and leftovers(out) == []


def test_other_errors_of_the_disk_are_not_taken_for_bad_files(descents, monkeypatch):
    """Too many files are open: the points are as good as before."""

    def refuse(self):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="Too many open"):
        patch.setattr(Path, "read_bytes", refuse)
        run(DESCENTS, descents)
    assert len(sweep_files(descents)) == 8


def test_a_folder_is_the_same_from_wherever_it_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = Store("out")
    monkeypatch.chdir("/")
    assert store.path == tmp_path / "out" and store.points == tmp_path / "out" / "points"


def test_collected_dims_and_values(descents, flows):
    tree = S.collect(descents)
    assert isinstance(tree, xr.DataTree) and set(tree.children) == {"depth=2", "depth=3"}
    for depth in (2, 3):
        node = tree[f"depth={depth}"].to_dataset()
        sizes = {"init_scale": 2, "depth": 1, "seed": 2, "save": 9}
        assert node.risk.sizes == sizes
        assert node.layer_norms.sizes == sizes | {"layer": depth}
        assert node.depth.values.tolist() == [depth]
    assert S.parse_spec(tree.attrs["spec"]).axes == DESCENTS.axes
    table = S.outcomes(descents)
    assert table.final_risk.dims == ("init_scale", "depth", "seed")
    for node in tree.children.values():
        np.testing.assert_allclose(node.risk.isel(save=-1), node.final_risk)
    single = S.collect(flows)
    assert isinstance(single, xr.Dataset)
    # Rows beyond the end of the shorter trajectory.
    reached = single.tau.notnull().sum("save").values
    assert single.sizes["save"] == max(reached)
    assert (single.risk.notnull().sum("save").values == reached).all()


def test_points_that_are_not_there_are_missing(descents, tmp_path):
    out = tmp_path / "out"
    run(DESCENTS, out)
    gone = next(Store(out).point_files())
    gone.path.unlink()
    assert str(S.status(out)) == "7 of 8 points done, 7 successful"
    table = S.outcomes(out)
    assert (table.result == "missing").sum() == 1
    tree = S.collect(out)
    lost = [node.risk.isnull().all("save").sum() for node in tree.children.values()]
    assert sum(map(int, lost)) == 1


def test_weights_are_kept_if_asked_for(descents, tmp_path):
    for weights, rows in (("final", ()), ("all", (9,))):
        spec = dataclasses.replace(DESCENTS, weights=weights, axes={"net.seed": (0,)})
        run(spec, tmp_path / weights)
        found = S.collect(tmp_path / weights).isel(seed=0)
        assert found.W1.shape == (*rows, 3, 3) and found.W2.shape == (*rows, 1, 3)
    problem, net = problem_and_net(1.0, 2, 0)
    end = gf.descend(problem, net, 0.05, 30).final
    np.testing.assert_allclose(found.W1[-1], end.weights[0], rtol=1e-10)


def test_zipped_axes_share_a_dim(descents, tmp_path):
    axes = {"net.init_scale": (1.0, 0.1), "problem.seed": (3, 4), "net.seed": (0, 1)}
    zipped = (("net.init_scale", "problem.seed"),)
    run(dataclasses.replace(DESCENTS, axes=axes, zip=zipped), tmp_path)
    found = S.collect(tmp_path)
    assert found.risk.sizes == {"init_scale": 2, "net_seed": 2, "save": 9}
    assert found.problem_seed.dims == ("init_scale",)
    assert found.problem_seed.values.tolist() == [3, 4]


def test_commands(descents, tmp_path, capsys, compilation_cache):
    file, out = tmp_path / "spec.toml", tmp_path / "out"
    S.write_spec(DESCENTS, file)
    assert cli.main(["sweep", str(file), "--out", str(out)]) == 0
    assert sweep_files(out) == sweep_files(descents)
    assert cli.main(["sweep", "status", str(out)]) == 0
    assert "8 of 8 points done, 8 successful" in capsys.readouterr().out
    assert cli.main(["sweep", "collect", str(out)]) == 0
    assert "depth=3" in capsys.readouterr().out
    tree = xr.open_datatree(out / "collected.nc", engine="h5netcdf")
    xr.testing.assert_identical(tree["depth=2"].risk.load(), S.collect(out)["depth=2"].risk)
    file.write_text("nmae = 'a'")
    assert cli.main(["sweep", "run", str(file), "--out", str(out)]) == 2
    assert "nmae is unknown; did you mean 'name'?" in capsys.readouterr().err
