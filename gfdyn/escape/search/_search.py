"""The search for escape directions from many random starts."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from ..._keys import random_keys
from ..._numbers import check_counts
from ..._progress import progress_bar
from ...diagnostics import direction
from ...nets import MLP, norm
from ...problem import Problem, check_fit
from .._rewrite import nearly_balanced
from ._clusters import same_direction
from ._convergence import Found, converge
from ._directions import Directions, collect
from ._projected_descent import FallingRate, projected_descent
from ._search_folder import Batch, SearchFolder, digest


# The length of the first step of the descent
_RATE = 0.15


def search(
    problem: Problem,
    widths: Sequence[int],
    n_starts: int = 64,
    *,
    key: PRNGKeyArray,
    activation: Any = "relu",
    steps: int = 2500,
    rtol: float | None = None,
    same: float = 1e-3,
    max_steps: int = 2000,
    batch_size: int = 64,
    folder: str | os.PathLike | None = None,
    progress: bool = False,
) -> Directions:
    r"""Directions ρ with $-s\rho \in \partial\mathcal L_0(\rho)$, ‖ρ‖² = L and s > 0, along
    which nets of these widths escape from the origin (Bantzis et al., Def. 2.1), from many
    random starts. There are local optima: the fastest found need not be the optimal one.

    1. Starts are uniform on the sphere. `projected_descent` with normalised steps of length
       $0.15(1 - k/K)^2$ takes all of them near a direction, side by side.
    2. Neurons are balanced, which costs no speed (`rebalance`). A start without positive
       speed then has died.
    3. The localized flow with exact kinks takes them onto the direction, one after the
       other from the fastest, until |dρ/dτ| ≤ 10 rtol · s. The speed then is right to
       rounding, on kinks as well. What is left to chance is whether the flow leaves a
       saddle that the descent has met to rounding.

    A start is not followed by itself where the descent has taken it to the outputs of a
    direction already found, up to `same` relative to their norm, and not beyond its speed.
    Where directions are not isolated, as on Example 1 (`gf.data.circle(8)`), starts rarely
    meet. There, at depth 3 and width 16, 64 starts take 50 s on two cores: 20 s compile the
    flow, 1 s is the descent, and each flow takes 0.3 s. Side by side (`jax.vmap`) it would
    take 20 to 30 times as long, every start through every branch until the last one rests.
    Where several hundred gates slide at once (depth 4, width 48) a flow takes a minute.

    Args:
        problem: the data and G = ∇C(0).
        widths: n_0 (inputs), n_1, …, n_L (outputs).
        n_starts: how many. Start i is the same however many there are.
        key: seeds the starts.
        activation: of `gf.nets.MLP`.
        steps: of the descent.
        rtol: of the flow; if None 1e-9 in float64, 1e-5 in float32.
        same: how far outputs of the same function may be apart, relative to their norm; 0
            to have every start followed by itself.
        max_steps: most steps of a flow.
        batch_size: how many starts descend side by side.
        folder: where finished batches are kept. A search that was interrupted goes on from
            there, and so does one with more starts: to the last bit as if run at once.
        progress: show a progress bar.

    Raises:
        TypeError: if `key` is no random key.
        ValueError: on counts or tolerances out of range, widths that do not fit the
            problem, or a folder that holds another search.
    """
    plan = _make_plan(problem, widths, activation, steps, rtol, same, max_steps)
    check_counts(n_starts=n_starts, batch_size=batch_size)
    random_keys(key, 1)
    storage = None
    if folder is not None:
        settings = _settings(plan, problem, key) | {"batch_size": batch_size}
        storage = SearchFolder(Path(folder), settings)
    found: list[Found] = []
    rows, speeds = [], []
    with progress_bar(total=n_starts, unit=" starts", disable=not progress) as bar:
        for first in range(0, n_starts, batch_size):
            last = min(first + batch_size, n_starts)
            batch = None if storage is None else storage.read(first, last)
            if batch is None:
                batch = _run_batch(plan, problem, key, first, last, found, bar)
                if storage is not None:
                    storage.write(first, batch)
            bar.update(last - bar.n)
            found += batch.found
            rows.append(batch.rows)
            speeds.append(batch.descent_speeds)
    return collect(found, np.concatenate(rows), np.concatenate(speeds), plan.template)


class _Plan(eqx.Module):
    """A net of the kind that is searched, and how it is done."""

    template: MLP
    widths: tuple[int, ...]
    steps: int
    rtol: float
    same: float
    max_steps: int


def _make_plan(
    problem: Problem,
    widths: Sequence[int],
    activation: Any,
    steps: int,
    rtol: float | None,
    same: float,
    max_steps: int,
) -> _Plan:
    """Check the options and put them together."""
    dtype = problem.data.x.dtype
    template = MLP(widths, key=jr.key(0), activation=activation, dtype=dtype)
    check_fit(problem, template)
    check_counts(steps=steps, max_steps=max_steps)
    if rtol is None:
        rtol = 1e-9 if dtype == jnp.float64 else 1e-5
    if not 0 < rtol < 1e-3:
        raise ValueError(
            f"rtol={rtol} must lie between 0 and 1e-3: the relative tolerance of the flow "
            "that ends in the directions, such as 1e-9 in float64."
        )
    if not 0 <= same < 1:
        raise ValueError(
            f"same={same} must be at least 0 and below 1: how far outputs of one direction "
            "may be apart, relative to their norm, such as 1e-3."
        )
    sizes = tuple(int(n) for n in widths)
    return _Plan(template, sizes, steps, float(rtol), float(same), max_steps)


def _settings(plan: _Plan, problem: Problem, key: PRNGKeyArray) -> dict[str, Any]:
    """What a start's fate depends on."""
    return {
        "problem": digest(problem),
        "widths": list(plan.widths),
        "activation": [sigma.name for sigma in plan.template.activations],
        "key": [str(key.dtype), np.asarray(jr.key_data(key)).tolist()],
        "steps": plan.steps,
        "rtol": plan.rtol,
        "same": plan.same,
        "max_steps": plan.max_steps,
    }


def _run_batch(
    plan: _Plan,
    problem: Problem,
    key: PRNGKeyArray,
    first: int,
    last: int,
    known: list[Found],
    bar: Any,
) -> Batch:
    """The fate of the starts first, …, last − 1, given the directions known before."""
    rate = FallingRate(_RATE, plan.steps)
    numbers = jnp.arange(first, last)
    nets = _descend(problem, plan.template, key, numbers, rate, plan.widths, plan.steps)
    outputs = np.asarray(jax.vmap(problem.outputs)(nets))
    speeds = np.asarray(-jax.vmap(problem.localized_risk)(nets))
    negligible = _rounding(problem)
    found = list(known)
    rows = np.full(last - first, -1)
    for i in np.argsort(-speeds, kind="stable"):
        if speeds[i] > negligible:
            row = same_direction(outputs[i], speeds[i], found, plan.same, below=True)
            if row is None:
                net = jax.tree.map(lambda w, i=i: w[i], nets)
                end = converge(problem, net, plan.rtol, plan.max_steps)
                row = same_direction(np.asarray(end.outputs), end.speed, found, plan.same)
                if row is None or not end.converged:
                    row = len(found)
                    found.append(end)
            rows[i] = row
        bar.update()
        bar.set_postfix_str(f"{len(found)} directions")
    return Batch(speeds, rows, tuple(found[len(known) :]))


@eqx.filter_jit
def _descend(
    problem: Problem,
    template: MLP,
    key: PRNGKeyArray,
    numbers: Array,
    rate: FallingRate,
    widths: tuple[int, ...],
    steps: int,
) -> MLP:
    """The starts of these numbers, near the directions to which they lead; a stack."""

    def start(number: Array) -> MLP:
        drawn = jr.fold_in(key, number)
        activations, dtype = template.activations, problem.data.x.dtype
        return MLP(widths, key=drawn, activation=activations, dtype=dtype)

    starts = jax.vmap(start)(numbers)
    ends: Any = projected_descent(
        problem, starts, rate, steps, normalised=True, save_every=steps
    ).net

    def near(net: MLP) -> Any:
        return direction(problem, nearly_balanced(net)[0])

    return jax.vmap(near)(ends)


def _rounding(problem: Problem) -> float:
    """Speeds below this are 0 in the precision of the data."""
    eps = float(jnp.finfo(problem.data.x.dtype).eps)
    largest = norm(problem.data.x) * norm(problem.cost_gradient_at_zero)
    return 100 * eps * float(largest)
