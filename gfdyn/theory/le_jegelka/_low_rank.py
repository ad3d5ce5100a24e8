r"""Low rank of the linear layers at the end: Theorem 2 and Corollary 1, with constants.

Each is a statement about one net on a trajectory of gradient flow and the one that it
started from; `jax.vmap(partial(check, initial))(traj.net)` for all saves.

`form="sharp"` has the constants that the proofs give when done with care: 2 for a Free
block, min(c, l) from c channels at l positions. `form="printed"` has those of the paper: 8,
and the larger side of the matrix. `version="first"` claims it for ReLU layers as well,
which is false.
"""

from collections.abc import Callable
from typing import Literal, get_args

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from ..._numerics import ROUNDING
from ..._types import Matrix
from ...nets import AbstractNet
from .._check import Check, at_most
from ._tail import TailSpectra, alignment, linear_tail, matrices, plain_pairs, tail_spectra
from ._version import Version


Form = Literal["sharp", "printed"]

_FREE_BLOCK = {"sharp": 2.0, "printed": 8.0}


class TailConstants(eqx.Module):
    r"""The constants of Theorem 2, of each matrix of the tail but the output.

    Attributes:
        step: $C_{j+1}$ of one step, $\|W_j\|_2^2 \ge C_{j+1} \|W_{j+1}\|_2^2 - d_j$.
        loss: $d_j$.
        factor: $C_j = 1/(b^{N_r(j)} V_c(j))$, b = 2 or 8: the product of the steps to the
            output.
        telescoped: $S_j = d_j + C_{j+1} S_{j+1}$.
        bound: $D_j = C_j\,(\|W_j(0)\|_F^2 - \|W_{\text{out}}(0)\|_F^2) + S_j$.
        free_blocks: $N_r(j)$, the Free blocks behind it.
        folds: $V_c(j)$, what the convolutions behind it cost.
    """

    step: Float[Array, " members"]
    loss: Float[Array, " members"]
    factor: Float[Array, " members"]
    telescoped: Float[Array, " members"]
    bound: Float[Array, " members"]
    free_blocks: Int[np.ndarray, " members"] = eqx.field(converter=np.asarray)
    folds: Int[np.ndarray, " members"] = eqx.field(converter=np.asarray)


def tail_constants(
    initial: AbstractNet, form: Form = "sharp", version: Version = "corrected"
) -> TailConstants:
    r"""C, D, N_r and V_c of a trajectory from where it started.

    With $M_l = W_{out}^\top W_{out} - W_{in} W_{in}^\top$ of the units of member l (as
    `gf.diagnostics.invariants` has it, so that a Free block is entered by B = [Y; Z]) and
    $\lambda^+$ the largest eigenvalue or 0,

    $$d_l = \lambda^+(M_l(0)) + C_{l+1}\,\lambda^+(U^\top U - Y Y^\top)(0),$$

    the second for a Free block. Le & Jegelka, Thm 2: where they have the square of a norm
    of M, its dimension is wrong; their V_c has M for K, and misses an inverse.

    Args:
        initial: the net that gradient flow started from.
        form: `"sharp"` counts 2 for a Free block and min(c, l) for c channels at l
            positions; `"printed"`, as in the paper, 8 and the larger side of the matrix.
        version: see `linear_tail`.

    Raises:
        TypeError, ValueError: as `linear_tail`; on another form.
    """
    if form not in get_args(Form):
        raise ValueError(f"form={form!r}; use 'sharp' or 'printed'.")
    members = linear_tail(initial, version)
    ws = matrices(initial, members)
    drift = {m.layer: m.matrix for m in initial.conserved() if m.form != "norms"}
    dtype = ws[0].dtype
    following = members[1:]
    folds = [m.fold if form == "sharp" else m.printed_fold for m in following]
    free = [m.inner is not None for m in following]
    step = 1 / (np.where(free, _FREE_BLOCK[form], 1) * np.asarray(folds))
    loss = [
        _positive(drift[member.layer])
        + (0.0 if after.inner is None else c * _positive(drift[after.inner]))
        for member, after, c in zip(members[:-1], following, step.tolist(), strict=True)
    ]
    telescoped = [loss[-1]]
    for d, c in zip(loss[-2::-1], step[-2::-1].tolist(), strict=True):
        telescoped.append(d + c * telescoped[-1])
    sums = jnp.stack(telescoped[::-1])
    factor = jnp.asarray(_from_behind(np.cumprod, step), dtype)
    norms = jnp.stack([jnp.sum(w**2) for w in ws])
    return TailConstants(
        step=jnp.asarray(step, dtype),
        loss=jnp.stack(loss),
        factor=factor,
        telescoped=sums,
        bound=factor * (norms[:-1] - norms[-1]) + sums,
        free_blocks=_from_behind(np.cumsum, np.asarray(free, int)),
        folds=_from_behind(np.cumprod, np.asarray(folds, int)),
    )


def step_inequality(
    initial: AbstractNet,
    net: AbstractNet,
    form: Form = "sharp",
    version: Version = "corrected",
    tolerance: ArrayLike = 0.0,
) -> Check:
    r"""$C_{j+1} \|W_{j+1}\|_2^2 - d_j \le \|W_j\|_2^2$ between neighbours of the tail, the
    one step of the proof of Theorem 2 (Le & Jegelka). Entries (members − 1,).

    Args:
        initial: the net that gradient flow started from.
        net: where it is.
        form, version: see `tail_constants`.
        tolerance: of the solve; what it may err relative to $\|W_j\|_F^2$
            and its neighbour's.

    Raises:
        TypeError, ValueError: as `tail_constants`.
    """
    constants = tail_constants(initial, form, version)
    spectra = tail_spectra(net, version)
    lhs = constants.step * spectra.spectral[1:] - constants.loss
    return _check(lhs, spectra.spectral[:-1], lhs <= 0, _sizes(spectra), tolerance)


def telescoped_inequality(
    initial: AbstractNet,
    net: AbstractNet,
    form: Form = "sharp",
    version: Version = "corrected",
    tolerance: ArrayLike = 0.0,
) -> Check:
    r"""$C_j \|W_{\text{out}}\|_F^2 - S_j \le \|W_j\|_2^2$: the steps from a matrix to
    the output together (Le & Jegelka, proof of Thm 2). Entries (members − 1,).

    Args:
        initial, net, form, version, tolerance: see `step_inequality`.

    Raises:
        TypeError, ValueError: as `step_inequality`.
    """
    constants = tail_constants(initial, form, version)
    spectra = tail_spectra(net, version)
    lhs = constants.factor * spectra.frobenius[-1] - constants.telescoped
    return _check(lhs, spectra.spectral[:-1], lhs <= 0, _sizes(spectra), tolerance)


def tail_bound(
    initial: AbstractNet,
    net: AbstractNet,
    form: Form = "sharp",
    version: Version = "corrected",
    tolerance: ArrayLike = 0.0,
) -> Check:
    r"""The tails stay bounded, whatever the norms do: $C_j \|W_j\|_F^2 - \|W_j\|_2^2 \le
    D_j$. Le & Jegelka, Thm 2, eq. (13). Entries (members − 1,).

    Of a fully connected tail C = 1, and the left side is $\sum_{i\ge2}\sigma_i^2$. Vacuous
    where D is so large that the number of singular values gives as much.

    Args:
        initial, net, form, version, tolerance: see `step_inequality`.

    Raises:
        TypeError, ValueError: as `step_inequality`.
    """
    constants = tail_constants(initial, form, version)
    spectra = tail_spectra(net, version)
    norms = spectra.frobenius[:-1]
    # From the small singular values, which the difference of the norms would lose.
    missing = (1 - constants.factor) * spectra.spectral[:-1]
    lhs = constants.factor * spectra.tail[:-1] - missing
    largest = (constants.factor - _least_ratios(net, version)) * norms
    vacuous = largest <= constants.bound
    return _check(lhs, constants.bound, vacuous, _sizes(spectra), tolerance)


def ratio_bound(
    initial: AbstractNet,
    net: AbstractNet,
    form: Form = "sharp",
    version: Version = "corrected",
    tolerance: ArrayLike = 0.0,
) -> Check:
    r"""$C_j - D_j/\|W_j\|_F^2 \le \|W_j\|_2^2/\|W_j\|_F^2$, for which Theorem 2 has its
    limit $C_j$, eq. (14); of a fully connected tail it is 1: rank one, eq. (15), Cor. 1.

    Where norms diverge, which they do once logistic or exponential losses are below ℓ(0)/N
    (Cor. 1 prints ℓ(0), which is not enough for more than one sample). The limit is a lower
    one, and its left side also holds as 1/(number of singular values): vacuous where that
    is larger. Entries (members − 1,).

    Args:
        initial, net, form, version: see `step_inequality`.
        tolerance: of the solve; what the ratio may err.

    Raises:
        TypeError, ValueError: as `step_inequality`.
    """
    constants = tail_constants(initial, form, version)
    spectra = tail_spectra(net, version)
    norms = spectra.frobenius[:-1]
    lhs = constants.factor - constants.bound / jnp.where(norms > 0, norms, 1)
    vacuous = lhs <= _least_ratios(net, version)
    return _check(lhs, spectra.ratio[:-1], vacuous, jnp.ones_like(lhs), tolerance)


def alignment_bound(
    initial: AbstractNet,
    net: AbstractNet,
    version: Version = "corrected",
    tolerance: ArrayLike = 0.0,
) -> Check:
    r"""Neighbours align: $1 - (D_j + \lambda^+(M_j) + \lambda^+(-M_j))/\|W_j\|_2^2 \le
    \langle v_{j+1}, u_j\rangle^2$, M at the start, of the last fully connected layers.

    The rate of Le & Jegelka, eq. (15), second half, which has a limit only. Vacuous where
    the left side is not positive. Entries as those of `alignment`.

    Args:
        initial, net, version: see `step_inequality`; the constants are the sharp ones.
        tolerance: of the solve; what the square on the right may err.

    Raises:
        TypeError, ValueError: as `step_inequality`.
    """
    constants = tail_constants(initial, "sharp", version)
    members = linear_tail(initial, version)
    pairs = plain_pairs(members)
    spectra = tail_spectra(net, version)
    drift = {m.layer: m.matrix for m in initial.conserved() if m.form != "norms"}
    behind = slice(len(members) - 1 - pairs, -1)
    spread = jnp.asarray(
        [_positive(s * drift[m.layer]) for m in members[behind] for s in (1.0, -1.0)]
    )
    missing = constants.bound[behind.start :] + jnp.sum(spread.reshape(pairs, 2), axis=1)
    norms = spectra.spectral[behind]
    lhs = 1 - missing / jnp.where(norms > 0, norms, 1)
    squares = alignment(net, version) ** 2
    return _check(lhs, squares, lhs <= 0, jnp.ones_like(lhs), tolerance)


def _check(
    lhs: Array, rhs: Array, vacuous: Array, sizes: Array, tolerance: ArrayLike
) -> Check:
    """lhs ≤ rhs up to what rounding and the solve do to numbers of these sizes."""
    rounding = ROUNDING * float(jnp.finfo(lhs.dtype).eps)
    slack = (rounding + jnp.asarray(tolerance, lhs.dtype)) * sizes
    return at_most(lhs, rhs, assumptions={}, vacuous=vacuous, slack=slack)


def _sizes(spectra: TailSpectra) -> Float[Array, " members"]:
    """‖W‖_F² of each matrix and its neighbour together."""
    return spectra.frobenius[:-1] + spectra.frobenius[1:]


def _positive(symmetric: Matrix) -> Float[Array, ""]:
    """λ⁺: the largest eigenvalue, or 0."""
    return jnp.maximum(jnp.linalg.eigvalsh(symmetric)[-1], 0)


def _least_ratios(net: AbstractNet, version: Version) -> Float[Array, " members"]:
    """The least ‖W‖_2²/‖W‖_F² that matrices of this shape have, of all but the output."""
    ws = matrices(net, linear_tail(net, version))
    return jnp.asarray([1 / min(w.shape) for w in ws[:-1]], ws[0].dtype)


def _from_behind(
    accumulate: Callable[[np.ndarray], np.ndarray], values: np.ndarray
) -> np.ndarray:
    return accumulate(values[::-1])[::-1]
