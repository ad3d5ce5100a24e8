"""Networks of least norm that interpolate, or have margin 1, from many starts."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ..._keys import random_keys
from ..._numbers import check_counts
from ...data import Dataset
from ...nets import MLP, check_mlp, norm
from ...problem import Problem, check_fit
from ._kkt import kkt
from ._lagrangian import RoundedReLU, augmented_lagrangian, rounded_outputs
from ._polish import polish
from ._programs import at_margin_one, check_program, violation
from ._witness import equal_layers


# What a start may violate its constraints by, under rounded ReLUs, to count as feasible
_FEASIBLE = 1e-3
# How far beyond its width a rounded kink is tried to reach, in units of it
_REACHES = (0.0, 3.0, 30.0)
# By how much polishing may change ‖θ‖², relative
_NEAR = 1e-2


class Optimum(eqx.Module):
    """The network of least norm that was found, and what became of all starts.

    Attributes:
        net: the best network.
        violation: its largest gap, relative to the largest target.
        polished: whether it satisfies the `kkt` conditions to rounding, on its kinks.
        square_norms: ‖θ‖² where each start ended, before polishing, (starts,).
        feasible: which of them met the constraints.
        seeded: which were given, rather than random; they come first.
    """

    net: MLP
    violation: Float[Array, ""]
    polished: bool
    square_norms: Float[np.ndarray, " starts"]
    feasible: Bool[np.ndarray, " starts"]
    seeded: Bool[np.ndarray, " starts"]

    @property
    def square_norm(self) -> Float[Array, ""]:
        """‖θ‖² of the best network."""
        return norm(self.net) ** 2

    @property
    def layer_spread(self) -> Float[Array, ""]:
        """max ‖W_l‖_F / min ‖W_l‖_F − 1, 0 at an optimum (Timor et al., Lemma 14)."""
        sizes = jnp.stack([norm(w) for w in self.net.weights])
        return jnp.max(sizes) / jnp.min(sizes) - 1

    @property
    def num_feasible(self) -> int:
        """How many starts met the constraints."""
        return int(self.feasible.sum())

    def best_square_norm(self, seeded: bool) -> float:
        """The least ‖θ‖² of feasible random starts, or of seeded ones; inf if none."""
        of = self.feasible & (self.seeded == seeded)
        return float(np.min(self.square_norms[of], initial=np.inf))

    def __repr__(self) -> str:
        """In a line."""
        ends = "polished" if self.polished else "not polished"
        return (
            f"Optimum: ‖θ‖² = {float(self.square_norm):.8g}, {ends}; violation "
            f"{float(self.violation):.1e}, layers within {float(self.layer_spread):.1e}; "
            f"{self.num_feasible} of {len(self.feasible)} starts feasible"
        )


def minimum_norm(
    problem: Problem,
    widths: Sequence[int],
    n_starts: int = 16,
    *,
    key: PRNGKeyArray,
    seeds: Sequence[MLP] = (),
    rounds: int = 12,
    steps: int = 200,
) -> Optimum:
    r"""$\min \|\theta\|$ subject to $f_\theta(x_i) = y_i$ over ReLU networks of these
    widths (Timor et al., eq. 2), from many starts: the best that was found.

    An augmented Lagrangian (`rounds` times `steps` steps of L-BFGS, all starts side by
    side) on ReLUs of rounded kink, and a Newton-like method on the pattern of gates that
    the best start ends with. Nothing proves the optimum global; the `ratio_certificate`
    holds of any net, and `kkt` tells how stationary it is.

    Args:
        problem: with squared loss. Data are scaled to size 1 on the way.
        widths: n_0 (inputs), n_1, …, n_L (outputs).
        n_starts: how many random starts; start i is the same however many there are.
        key: seeds them.
        seeds: other starts, such as a `minimum_norm_witness`; hidden layers may be
            narrower.
        rounds, steps: of the augmented Lagrangian.

    Raises:
        TypeError: if `key` is no random key, or a seed no MLP.
        ValueError: for another loss, counts out of range, or widths or seeds that do not
            fit.
        RuntimeError: if no start meets the constraints.
    """
    check_program(problem, margin=False)
    return _optimum(problem, widths, n_starts, key, seeds, rounds, steps)


def maximum_margin(
    problem: Problem,
    widths: Sequence[int],
    n_starts: int = 16,
    *,
    key: PRNGKeyArray,
    seeds: Sequence[MLP] = (),
    rounds: int = 12,
    steps: int = 200,
) -> Optimum:
    r"""$\min \frac12\|\theta\|^2$ subject to $y_i f_\theta(x_i) \ge 1$ over ReLU networks
    of these widths (Timor et al., eq. 6): the direction of largest normalised margin, at
    margin 1. From many starts, the best that was found.

    By the method of `minimum_norm`.

    Args:
        problem: with exponential or logistic loss, of which only the labels matter.
        widths, n_starts, key, seeds, rounds, steps: see `minimum_norm`; a seed may be a
            `maximum_margin_witness`.

    Raises:
        TypeError: if `key` is no random key, or a seed no MLP.
        ValueError: for another loss, counts out of range, or widths or seeds that do not
            fit.
        RuntimeError: if no start meets the constraints.
    """
    check_program(problem, margin=True)
    return _optimum(problem, widths, n_starts, key, seeds, rounds, steps)


def _optimum(
    problem: Problem,
    widths: Sequence[int],
    n_starts: int,
    key: PRNGKeyArray,
    seeds: Sequence[MLP],
    rounds: int,
    steps: int,
) -> Optimum:
    check_counts(n_starts=n_starts, least=0 if seeds else 1)
    check_counts(rounds=rounds, steps=steps)
    random_keys(key, 1)
    dtype = problem.data.x.dtype
    template = MLP(widths, key=jr.key(0), dtype=dtype)
    check_fit(problem, template)
    unit, factor = _of_unit_size(problem, template.degree)
    given = [jax.tree.map(lambda w: w / factor, _widened(s, template)) for s in seeds]
    starts = [*given, *(_draw(jr.fold_in(key, i), widths, dtype) for i in range(n_starts))]
    stack = jax.tree.map(lambda *w: jnp.stack(w), *starts)

    # optax counts in int32, and adds to it what is int64 with x64.
    with jax.numpy_dtype_promotion("standard"):
        ends, kink = augmented_lagrangian(unit, stack, rounds, steps)
    violations, squares, nets = _ends(unit, ends, kink)
    feasible = np.asarray(violations) <= _FEASIBLE
    if not feasible.any():
        raise RuntimeError(
            f"none of {len(starts)} starts met the constraints: use more starts or steps, "
            "wider layers, or seeds that are feasible, such as a witness."
        )
    best = int(np.argmin(np.where(feasible, squares, np.inf)))
    net, polished = _polished(unit, jax.tree.map(lambda w: w[best], nets), kink)
    net = jax.tree.map(lambda w: factor * w, net)
    return Optimum(
        net=net,
        violation=violation(problem, problem.outputs(net)),
        polished=polished,
        square_norms=np.asarray(factor**2 * squares),
        feasible=feasible,
        seeded=np.arange(len(starts)) < len(given),
    )


def _of_unit_size(problem: Problem, degree: int) -> tuple[Problem, Array]:
    """The problem with max ‖x‖ = 1 and max |y| = 1, and what its optima are multiplied by
    to be those of the problem: as f has this degree in θ, their norm is least as well."""
    x, y = problem.data.x, problem.data.y
    inputs = jnp.max(jnp.linalg.norm(x, axis=1))
    targets = jnp.max(jnp.abs(y))
    inputs, targets = (jnp.where(size > 0, size, 1) for size in (inputs, targets))
    unit = Problem(Dataset(x / inputs, y / targets), problem.loss)
    return unit, (targets / inputs) ** (1 / degree)


def _draw(key: PRNGKeyArray, widths: Sequence[int], dtype: np.dtype) -> MLP:
    """Entries N(0, 2/n_{l−1}), which keep the size of what passes."""
    net = MLP(widths, key=key, dtype=dtype)
    return jax.tree.map(lambda w: w * (2 / w.shape[1]) ** 0.5, net)


def _widened(seed: MLP, template: MLP) -> MLP:
    """The seed with zeros added, of the widths of the template."""
    check_mlp(seed)
    ours = [w.shape for w in seed.weights]
    theirs = [w.shape for w in template.weights]
    wider = [min(b[i] - a[i] for i in (0, 1)) for a, b in zip(ours, theirs, strict=False)]
    fits = len(ours) == len(theirs) and min(wider) >= 0
    ends = (seed.in_size, seed.out_size) == (template.in_size, template.out_size)
    same = seed.activations == template.activations
    if not (fits and ends and same) or seed.weights[0].dtype != template.weights[0].dtype:
        raise ValueError(
            f"a seed has weights {ours} of {seed.weights[0].dtype} and activations "
            f"{[s.name for s in seed.activations]}; they must be ReLU, of at most the "
            f"shapes {theirs}, and {template.weights[0].dtype}."
        )
    weights = [
        jnp.pad(w, [(0, n - m) for m, n in zip(w.shape, shape, strict=True)])
        for w, shape in zip(seed.weights, theirs, strict=True)
    ]
    return MLP.from_weights(weights)


@eqx.filter_jit
def _ends(problem: Problem, nets: MLP, kink: Array) -> tuple[Array, Array, MLP]:
    """How far each violates its constraints under rounded ReLUs, and ‖θ‖² of each with
    plain ones, with layers of equal norm and at margin 1; these nets."""

    def of(net: MLP) -> tuple[Array, Array, MLP]:
        gap = violation(problem, rounded_outputs(problem, net, kink))
        best = at_margin_one(problem, equal_layers(net))
        return gap, norm(best) ** 2, best

    return jax.vmap(of)(nets)


def _polished(problem: Problem, net: MLP, kink: Array) -> tuple[MLP, bool]:
    """The KKT point on the pattern of the net, if there is one near it; else the net."""
    precision = float(jnp.finfo(kink.dtype).eps) ** 0.5
    z = _rounded_preactivations(problem, net, kink)
    for reach in _REACHES:
        near = [(zl > -reach * kink) & (zl <= (1 + reach) * kink) for zl in z]
        kinks = tuple(n & (zl != 0) for n, zl in zip(near, z, strict=True))
        off = tuple(k | (zl <= 0) for k, zl in zip(kinks, z, strict=True))
        found = at_margin_one(problem, polish(problem, net, off, kinks))
        gap = float(violation(problem, problem.outputs(found)))
        change = abs(float(norm(found) / norm(net)) ** 2 - 1)
        if gap <= precision and change <= _NEAR:
            if float(kkt(problem, found, precision).residual) <= 10 * precision:
                return found, True
    return net, False


@eqx.filter_jit
def _rounded_preactivations(problem: Problem, net: MLP, kink: Array) -> tuple[Array, ...]:
    gates = [RoundedReLU(kink)] * len(net.activations)
    return net.forward(problem.data.x, gates)[1]
