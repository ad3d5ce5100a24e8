"""Sweeps that go on: what is kept, set aside, and computed anew."""

import dataclasses
import errno
import os
import shutil
import threading
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from fixtures import sweep_files
from sweep_cases import DESCENTS, FLOWS, run

from gfdyn import sweeps
from gfdyn.sweeps.results._store import Store, _checksum
from gfdyn.sweeps.spec._plan import make_plan, resolved


def leftovers(out: Path) -> list[Path]:
    """Temporary files and checkpoints."""
    return [*out.rglob(".*"), *(out / "checkpoints").iterdir()]


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
            assert sweeps.status(out).under_way == 1
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


def test_full_disk(descents, tmp_path, monkeypatch):
    """Here by an error of the fifth write; on a real one in test_killed_engines.py."""
    write, count = Path.write_bytes, []

    def write_until_full(self, content):
        count.append(self)
        if len(count) > 4:
            write(self, content[:10])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, content)

    out = tmp_path / "out"
    spec = dataclasses.replace(DESCENTS, engine=sweeps.EngineSettings())
    with monkeypatch.context() as patch, pytest.raises(OSError) as error:
        patch.setattr(Path, "write_bytes", write_until_full)
        run(spec, out)
    assert f"no space left in {out}. Free some. What is done is kept" in str(error.value)
    assert 0 < len(sweep_files(out)) < 8 and leftovers(out) == []
    assert run(spec, out).ok == 8


def test_a_folder_is_of_one_sweep(descents):
    wider = dataclasses.replace(DESCENTS, net=sweeps.NetSettings(width=4, depth=2))
    with pytest.raises(ValueError, match=r"another sweep, with net.init_scale=1.0 where"):
        run(wider, descents)
    swapped = dict(reversed(list(DESCENTS.axes.items())))
    with pytest.raises(ValueError, match="axes in the order"):
        run(dataclasses.replace(DESCENTS, axes=swapped), descents)
    elsewhere = dataclasses.replace(DESCENTS.engine, name="processes", workers=3)
    # No workers are started where nothing is missing.
    assert run(dataclasses.replace(DESCENTS, engine=elsewhere), descents).ok == 8


def finished(out: Path, num_seeds: int) -> sweeps.Spec:
    """A folder with a sound file for each of 20 · `num_seeds` points."""
    axes = {
        "net.init_scale": sweeps.log(10.0, 1e-30, 4),
        "net.depth": (2, 3, 4, 5, 6),
        "net.seed": sweeps.seeds(num_seeds),
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
    # Imports and other threads of this process allocate as well, in some of the runs.
    peak = min(peak_of_run(share, tmp_path / "b") for _ in range(3))
    assert peak < 6e3 * len(share)


def peak_of_run(spec: sweeps.Spec, out: Path) -> int:
    """The most bytes that Python objects take while a sweep is run."""
    tracemalloc.start()
    run(spec, out)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


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
    assert sweeps.status(out).results.get("error", 0) == (not done)
    reasons = {"the file that says why cannot be read"} if not done else set()
    assert reasons <= set(sweeps.outcomes(out).reason.values.ravel().tolist())
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
