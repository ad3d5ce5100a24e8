"""What a file holds, against what is computed from it again."""

from typing import Any

import equinox as eqx
import jax
import numpy as np

from ..flows import AbstractFlow
from ._begin import SolveState
from ._certificate import open_ledger
from ._descent_state import DescentState
from ._schema import Axes, check_range, layout, refuse, without_axes
from ._trajectory import Trajectory


# How far what is computed again may be off, on another device: relative to itself, and to
# the risk at the start.
_ROUNDING, _ROUNDING_OF_START = 1e-3, 1e-6


def check_against_flow(traj: Trajectory, batch: Axes) -> None:
    """Raise unless the flow is of such positions, and the risk at the end that of the last
    one, as is how fast its clock runs there."""
    flow, final = without_axes((traj.flow, traj.final_position), batch)

    def begun(flow: AbstractFlow, position: Any) -> Any:
        net = flow.net(position)
        flow.check(net)
        return flow.start(net)

    if layout(eqx.filter_eval_shape(begun, flow, final)) != layout(final):
        expected = f"a position of the {type(traj.flow).__name__}"
        refuse("final_position", traj.final_position, expected)
    risk, rate = _at_end(traj.flow, traj.final_position, len(batch))
    _check_close("final_risk", traj.final_risk, risk, traj.initial_risk)
    _check_checkpoint(traj, rate)
    if traj.checkpoint is not None:
        ledger = eqx.filter_eval_shape(open_ledger, flow, final)
        _check_layout(traj.checkpoint, ledger, final, batch)


def _check_layout(
    state: SolveState | DescentState, ledger: Any, position: Any, batch: Axes
) -> None:
    """Raise unless a state holds arrays as those of such a ledger and position."""
    of_solve = isinstance(state, SolveState)
    named = "state.position" if of_solve else "net"
    for name, found, expected in (
        ("ledger", state.ledger, ledger),
        (named, state.state.position if of_solve else state.net, position),
    ):
        if layout(without_axes(found, batch)) != layout(expected):
            shown = eqx.tree_pformat(expected, width=10**6)
            refuse(f"checkpoint.{name}", found, f"one of the flow's, {shown:.80},")


def _check_checkpoint(traj: Trajectory, rate: Any) -> None:
    """Raise unless a solve, or a descent, goes on from it."""
    state = traj.checkpoint
    if isinstance(state, SolveState):
        check_range("checkpoint.choices", state.choices, 0)
        _check_close("checkpoint.log_time_rate", state.log_time_rate, rate, 1.0)
    elif isinstance(state, DescentState):
        check_range("checkpoint.step", state.step, 0)
        try:
            jax.random.key_impl(state.key)
        except Exception as error:
            raise ValueError(f"checkpoint.key_kind={state.key_kind!r}: {error}") from error
    elif state is not None:
        refuse("checkpoint", state, "the state of a solve or of a descent")


@eqx.filter_jit
def _at_end(flow: AbstractFlow, position: Any, batch_axes: int) -> Any:
    def at_end(flow: AbstractFlow, position: Any) -> Any:
        return flow.risk(position), flow.log_time_rate(position)

    for _ in range(batch_axes):
        at_end = eqx.filter_vmap(at_end)
    with jax.default_matmul_precision("highest"):
        return at_end(flow, position)


def _check_close(name: str, found: Any, expected: Any, scale: Any) -> None:
    """Raise unless finite numbers are what they are computed to be."""
    found, expected, scale = map(np.asarray, (found, expected, scale))
    if found.dtype != expected.dtype:
        refuse(name, found, f"the dtype {expected.dtype}")
    size = np.maximum(np.abs(found), np.abs(expected))
    allowed = _ROUNDING * size + _ROUNDING_OF_START * np.where(np.isfinite(scale), scale, 0)
    known = np.isfinite(found) & np.isfinite(expected)
    if np.any(known & (np.abs(found - expected) > allowed)):
        refuse(name, found.tolist(), f"{expected.tolist()}, that of the last position,")


def is_off(times: np.ndarray, logs: Any) -> np.ndarray:
    """Which of the times do not have these logarithms."""
    with np.errstate(all="ignore"):
        expected, found = np.log(times), np.asarray(logs)
        both = np.isfinite(expected) & np.isfinite(found)
        off = np.abs(expected - found) > _ROUNDING
    return np.where(both, off, np.isfinite(expected) != np.isfinite(found))
