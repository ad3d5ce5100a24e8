"""How often a reader who follows a solve from file to file turns back.

    python tests/turning_back.py

Each function of the package counts once, in the order in which tracing a solve comes to
it; a call into a file that was left before turns back. Printed for the whole solve and from
the solver's step on, with how many files and functions there are.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import jax

import gfdyn as gf


PACKAGE = Path(gf.__file__).parent
# The file and the name of a function
Function = tuple[str, str]


def functions_of(run: Callable[[], Any]) -> list[Function]:
    """The package's functions that a run calls, in the order of their first calls."""
    found: dict[Function, None] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        named = not code.co_name.startswith("<")
        if event == "call" and named and Path(code.co_filename).is_relative_to(PACKAGE):
            found[code.co_filename, code.co_name] = None

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return list(found)


def turns(functions: Sequence[Function]) -> int:
    """The calls into files that were left before."""
    left: set[str] = set()
    count, here = 0, ""
    for file, _ in functions:
        if file != here:
            count += file in left
            left.add(here)
            here = file
    return count


def main() -> None:
    """Trace a solve of a small network along its kinks."""
    problem = gf.Problem(gf.data.circle(8), gf.losses.squared)
    net = gf.nets.MLP([2, 8, 8, 1], key=jax.random.key(0))
    flow, solver = gf.GradientFlow(problem), gf.solvers.ExactKinks()

    def end(net: gf.nets.MLP) -> gf.nets.AbstractNet:
        return gf.solve(flow, net, t1=1.0, solver=solver).final

    found = functions_of(lambda: jax.eval_shape(end, net))
    step = next(i for i, (file, name) in enumerate(found) if name == "step")
    for said, part in (("a solve", found), ("a step", found[step:])):
        files = len({file for file, _ in part})
        print(f"{said}: {turns(part)} turns, {len(part)} functions in {files} files")


if __name__ == "__main__":
    main()
