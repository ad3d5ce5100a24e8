"""Run a sweep: compute what is missing in its folder."""

import contextlib
import errno
import os
import secrets
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from ..._progress import progress_bar
from ..results import Status, Store, sign, status, versions
from ..spec import EngineSettings, PointBatch, Spec, has_doubles, make_plan, read_spec
from ._claim import claim
from ._compute import PointOutcome
from ._engines import open_engine
from ._queue import Queue
from ._worker import Employer


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def run(
    spec: Spec | str | os.PathLike,
    out: str | os.PathLike,
    executor: Executor | None = None,
    *,
    progress: bool = True,
    mix_versions: bool = False,
) -> Status:
    """Compute the points of a sweep that its folder lacks.

    Each point is a file, complete or not there, and long runs leave checkpoints: killed at
    any moment and run again, a sweep ends with the same files to the last bit. Files that
    are not what their names say, or cannot be read, are moved to `rejected/`, named in the
    log and on the standard error, and computed anew. Points that fail are rows with a
    reason. Two sweeps may share a folder.

    With processes or a Dask cluster of its own, call it from a script under
    `if __name__ == "__main__":`, since workers import that script.

    Args:
        spec: the sweep, or the TOML or JSON file that describes it.
        out: its folder; made if it is not there.
        executor: where batches are computed, in place of the spec's engine: any
            `concurrent.futures.Executor`, such as `client.get_executor()` of Dask.
        progress: show a progress bar.
        mix_versions: go on where other versions of gfdyn or JAX have begun, or nobody knows
            which; the manifest keeps all of them.

    Returns:
        What became of the points.

    Raises:
        ValueError: on a bad spec, a folder of another sweep, one that other versions have
            begun, or a precision that jax has not been set to.
        OSError: if the disk is full; what was done is intact.
        ConnectionError: if the workers are gone, do not answer in time, or do not see the
            folder.
        KeyboardInterrupt: on Ctrl-C, after telling how to resume.
    """
    spec = spec if isinstance(spec, Spec) else read_spec(spec)
    _check_precision(spec)
    store = Store(out)
    with _explained(store, spec):
        store.create()
        spec = claim(store, spec)
        plan = make_plan(spec)
        done = _verified(store, set(plan.places))
        batches = [b for b in plan.batches if not done.issuperset(b.digests)]
        points = sum(len(batch.points) for batch in batches)
        if batches:
            sign(store, bool(done) or store.has_checkpoints(), mix_versions)
        # Workers that see the same folder read it there.
        mark = f"run {secrets.token_hex(8)}"
        total = len(plan.places)
        store.note(f"{spec.name}: {total} points, {points} of them to compute ({mark})")
        try:
            with progress_bar(
                total=total,
                initial=total - points,
                unit=" points",
                disable=not progress,
            ) as bar:
                if batches:
                    employer = Employer(store, mark, versions(), has_doubles())
                    _compute(employer, spec, batches, executor, bar)
        finally:
            store.tidy(_finished(store, plan.batches))
    found = status(store.path)
    store.note(str(found))
    return found


def _compute(
    employer: Employer,
    spec: Spec,
    batches: list[PointBatch],
    executor: Executor | None,
    bar: Any,
) -> None:
    """Compute the batches, and keep the bar and the log up to date."""
    results: Counter[str] = Counter()
    store = employer.store
    with open_engine(spec.engine, employer, executor) as engine:
        queue = Queue(engine, batches)
        try:
            for batch, found in queue.results():
                outcomes = _outcomes(store, batch, found)
                for outcome in outcomes:
                    results["failed" if outcome.reason else "ok"] += 1
                    if outcome.reason:
                        store.note(f"{outcome.digest}: {outcome.result}: {outcome.reason}")
                bar.update(len(outcomes))
                running = sum(len(each.points) for each in queue.running.values())
                bar.set_postfix(failed=results["failed"], running=running)
        finally:
            queue.cancel()


def _outcomes(
    store: Store, batch: PointBatch, found: list[PointOutcome] | Exception
) -> list[PointOutcome]:
    """Those of a batch; failures, which are kept as well, if it raised."""
    if isinstance(found, OSError) and found.errno in _FULL:
        raise found
    if not isinstance(found, Exception):
        return found
    reason = f"{type(found).__name__}: {found}{_limit(found)}"
    for digest in batch.digests:
        store.write_failure(digest, reason)
    return [PointOutcome(digest, "error", reason) for digest in batch.digests]


def _limit(error: Exception) -> str:
    """How much memory the worker had that Dask says a batch has killed."""
    limit = getattr(getattr(error, "last_worker", None), "memory_limit", None)
    return f" Its memory limit is {limit / 1e6:.0f} MB." if limit else ""


def _check_precision(spec: Spec) -> None:
    if spec.dtype == "float64" and not has_doubles():
        raise ValueError(
            "dtype='float64', but this process computes in float32; first call "
            'jax.config.update("jax_enable_x64", True), or set dtype = "float32".'
        )


def _verified(store: Store, planned: set[str]) -> set[str]:
    """The points that are there, as their checksums confirm. Files that are not what
    their names say are moved out of the way, and others named."""
    done = set()
    for digest, _, file in store.point_files():
        if digest not in planned:
            store.note(f"{file}: foreign, no point of this sweep; left where it is")
        elif store.verified(file) is None:
            changed = store.is_readable(file)
            why = "truncated or tampered with" if changed else "cannot be read"
            _reject(store, file, why)
        else:
            done.add(digest)
    for file in store.unreadable():
        _reject(store, file, "cannot be read")
    for file in store.strangers():
        store.note(f"{file}: foreign, no result of a sweep; left where it is")
    return done


def _reject(store: Store, file: Path, why: str) -> None:
    """Move a file out of the way, and say so."""
    store.reject(file)
    line = f"{file}: {why}; moved to rejected/"
    store.note(line)
    print(line, file=sys.stderr)


def _finished(store: Store, batches: tuple[PointBatch, ...]) -> list[str]:
    """The batches whose points are all there."""
    there = {file.digest for file in store.point_files()}
    return [batch.digest for batch in batches if there.issuperset(batch.digests)]


@contextlib.contextmanager
def _explained(store: Store, spec: Spec) -> Iterator[None]:
    """Say how to go on from where the sweep was stopped."""
    resume = f"What is done is kept; go on with: {resume_command(store.path, spec)}"
    try:
        yield
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):
            store.note("interrupted")
        print(f"Interrupted. {resume}")
        raise
    except ConnectionError as error:
        raise ConnectionError(f"{store.path}: {error}. {resume}") from error
    except OSError as error:
        if error.errno in _FULL:
            message = f"no space left in {store.path}. Free some. {resume}"
            raise OSError(error.errno, message) from error
        raise


def resume_command(out: Path, spec: Spec) -> str:
    """The command that goes on with a sweep."""
    words = ["gfdyn", "sweep", str(out / "spec.toml"), "--out", str(out)]
    engine = spec.engine
    if engine.name == "processes":
        words += ["--workers", str(engine.workers or os.cpu_count())]
    if engine.name == "dask":
        words += ["--dask", engine.address or "local"]
        if engine.wait != EngineSettings.wait:
            words += ["--wait", f"{engine.wait:g}"]
    return shlex.join(words)
