"""A sweep in processes that are killed; test_killed_engines.py starts this file.

python tests/killed_sweeps.py OUT serial          run it; likewise `processes`, `dask`
python tests/killed_sweeps.py OUT tcp://…         on a running Dask cluster
python tests/killed_sweeps.py OUT kill 20         run it, killed so often, to its end
"""

import dataclasses
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import gfdyn as gf
from gfdyn.sweeps.run._worker import configure


S = gf.sweeps

SPEC = S.Spec(
    name="to be killed",
    problem=S.ProblemSettings(samples=6, teacher=(3, 2, 1)),
    net=S.NetSettings(width=3, depth=2, init_scale=1.0),
    run=S.DescentSettings(learning_rate=0.01, steps=8000),
    records=("risk",),
    max_saves=100,
    axes={"net.init_scale": (1.0, 0.1, 0.01), "net.seed": S.seeds(5)},
    engine=S.EngineSettings(checkpoint_every=1000),
)


def on(name: str, spec: S.Spec = SPEC, **place: Any) -> S.Spec:
    """The sweep, computed elsewhere, by one worker if no other number is given."""
    engine = dataclasses.replace(spec.engine, name=name, **{"workers": 1, **place})
    return dataclasses.replace(spec, engine=engine)


def run(cache: Path, out: Path, where: str) -> None:
    """Run what is missing, with the compiled programs of a folder."""
    configure(cache, x64=True)
    spec = on("dask", address=where) if where.startswith("tcp") else on(where)
    S.run(spec, out, progress=False)


def seconds_until_killed(cache: Path, out: Path, seconds: float | None) -> float | None:
    """Run it, for so many seconds; how long it took, None if it was killed.

    It is forked before JAX starts a backend, and so needs no import.
    """
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        run(cache, out, "serial")
        os._exit(0)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return None if os.WIFSIGNALED(status) else time.monotonic() - started


def kill(cache: Path, out: Path, times: int) -> None:
    """Run it, killed so often at random moments, then to its end."""
    whole = out.parent / "undisturbed"
    seconds = seconds_until_killed(cache, whole, None)
    assert seconds is not None
    random.seed(times)
    kills = 0
    while kills < times:
        if seconds_until_killed(cache, out, random.uniform(0, seconds)) is None:
            kills += 1
            done = len(list(out.glob("points/*.nc")))
            print(f"kill {kills}, {done} of {len(SPEC)} points there", flush=True)
        if len(list(out.glob("points/*.nc"))) == len(SPEC):
            # Nothing is left to disturb: from the start again.
            shutil.rmtree(out)
    seconds_until_killed(cache, out, None)


if __name__ == "__main__":
    cache, out, how, *times = sys.argv[1:]
    if times:
        kill(Path(cache), Path(out), int(times[0]))
    else:
        run(Path(cache), Path(out), how)
