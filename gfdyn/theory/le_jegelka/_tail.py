"""The linear layers that a network ends with, and the spectra of their matrices."""

import math

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._types import Matrix
from ...nets import (
    AbstractConnection,
    AbstractNet,
    Conv,
    Dense,
    LayeredNet,
    as_layered,
)
from ._version import Version, check_version


class Member(eqx.Module):
    """A layer of a tail, with what its matrix loses against that before it.

    Its matrix W is `net.weights[layer - 1]`: a fully connected one as it is, of a
    convolution c × (a b) by output channels, of a Free block A = [U Z].

    Attributes:
        layer: its number in the net, from 1.
        inner: the hidden layer of its Free block σ(U σ(Y x) + Z x); None if it is none.
        fold: what reordering the tensor that leads to it costs, 1 for a matrix between
            vectors: min(a, b) for a convolution of a channels and b entries of the window;
            min(c, l) from c channels at l positions.
        printed_fold: as the paper prints it: from channels at positions the larger side of
            the matrix.
    """

    layer: int = eqx.field(static=True)
    inner: int | None = eqx.field(static=True)
    fold: int = eqx.field(static=True)
    printed_fold: int = eqx.field(static=True)

    @property
    def is_plain(self) -> bool:
        """Whether it is a matrix between vectors."""
        return self.inner is None and self.fold == 1


class TailSpectra(eqx.Module):
    r"""How near to rank one the matrices $W_j$ of a tail are, each (members,).

    Attributes:
        frobenius: $\|W_j\|_F^2$.
        spectral: $\|W_j\|_2^2$.
        ratio: $\|W_j\|_2^2 / \|W_j\|_F^2$, the inverse of the stable rank; 1 for zeros.
        tail: $\sum_{i\ge2} \sigma_i^2$.
        defect: $\big\| W_j/\|W_j\|_F - u_j v_j^\top \big\|_F = \sqrt{2 - 2\sqrt{ratio}}$.
    """

    frobenius: Float[Array, " members"]
    spectral: Float[Array, " members"]
    ratio: Float[Array, " members"]
    tail: Float[Array, " members"]
    defect: Float[Array, " members"]


def linear_tail(net: AbstractNet, version: Version = "corrected") -> tuple[Member, ...]:
    """The layers of Le & Jegelka, Thm 2: convolutions, Free blocks and fully connected
    layers in a row, up to the output, each feeding only the next.

    All are linear (the first of them may stand on ReLUs), and without biases, which would
    move the balance of norms.

    Args:
        net: an MLP or a LayeredNet with one output.
        version: `"first"` does not ask for linear layers, as the first version of the paper
            did not; Theorem 2 is then false.

    Raises:
        TypeError: if the net is neither an MLP nor a LayeredNet.
        ValueError: if it has several outputs, or nothing but its output is in the tail; on
            another version.
    """
    check_version(version)
    net = as_layered(net)
    if net.out_size != 1:
        raise ValueError(
            f"net has {net.out_size} outputs; Theorem 2 needs a single one, whose matrix "
            "has rank one."
        )
    passing = [version == "first" or sigma.is_linear for sigma in net.activations]
    members = _members(net, passing)
    if len(members) < 2:
        raise ValueError(
            "net has no tail: before its output there is no linear layer without bias (a "
            "convolution, Free block or fully connected one); of ReLU layers only "
            "version='first' speaks."
        )
    return members


def matrices(net: AbstractNet, members: tuple[Member, ...]) -> tuple[Matrix, ...]:
    """W of each."""
    layers = as_layered(net).layers
    return tuple(layers[member.layer - 1].weight for member in members)


def tail_spectra(net: AbstractNet, version: Version = "corrected") -> TailSpectra:
    """Those of the matrices of `linear_tail`, the output last; `jax.vmap` it over the nets
    of a trajectory.

    Args:
        version: see `linear_tail`.

    Raises:
        TypeError, ValueError: as `linear_tail`.
    """
    values = [
        jnp.linalg.svd(w, compute_uv=False)
        for w in matrices(net, linear_tail(net, version))
    ]
    spectral = jnp.stack([s[0] ** 2 for s in values])
    tail = jnp.stack([jnp.sum(s[1:] ** 2) for s in values])
    frobenius = spectral + tail
    # 1 − r from the small singular values, so that it keeps its digits near rank one:
    # 2 − 2√r = 2(1 − r)/(1 + √r).
    missing = tail / jnp.where(frobenius > 0, frobenius, 1)
    ratio = 1 - missing
    defect = jnp.sqrt(2 * missing / (1 + jnp.sqrt(ratio)))
    return TailSpectra(frobenius, spectral, ratio, tail, defect)


def alignment(net: AbstractNet, version: Version = "corrected") -> Float[Array, " pairs"]:
    r"""$|\langle v_{j+1}, u_j\rangle|$ of the leading singular vectors of neighbours, of
    the last layers of `linear_tail` that are fully connected (those after the first).

    They have no meaning where two singular values are the largest.

    Args:
        version: see `linear_tail`.

    Raises:
        TypeError, ValueError: as `linear_tail`.
    """
    members = linear_tail(net, version)
    ws = matrices(net, members)[len(members) - 1 - plain_pairs(members) :]
    factors = [jnp.linalg.svd(w, full_matrices=False) for w in ws]
    found = [
        jnp.abs(jnp.sum(right[0] * left[:, 0]))
        for (left, _, _), (_, _, right) in zip(factors[:-1], factors[1:], strict=True)
    ]
    return jnp.stack(found) if found else jnp.zeros(0, ws[0].dtype)


def plain_pairs(members: tuple[Member, ...]) -> int:
    """The number of neighbours (j, j + 1) behind which all are fully connected."""
    count = 0
    while count < len(members) - 1 and members[-1 - count].is_plain:
        count += 1
    return count


def _members(net: LayeredNet, passing: list[bool]) -> tuple[Member, ...]:
    members: list[Member] = []
    layer = len(net.layers)
    while found := _member(net, layer, passing):
        member, source = found
        members.append(member)
        block = {layer} if member.inner is None else {layer, member.inner}
        if source == 0 or not passing[source - 1] or _fed_by(net, source) != block:
            break
        layer = source
    return tuple(reversed(members))


def _member(net: LayeredNet, number: int, passing: list[bool]) -> tuple[Member, int] | None:
    """What a layer is in a tail, and what it comes from; None if it cannot be in one."""
    layer = net.layers[number - 1]
    if not layer.is_plain:
        return None
    parts = dict(zip(layer.sources, layer.connections, strict=True))
    if len(parts) == len(layer.sources) == 1:
        [(source, connection)] = parts.items()
        fold, printed = _folds(net, connection, source)
        return (Member(number, None, fold, printed), source) if fold else None
    # A Free block: one source is the hidden layer, which comes from the other alone.
    for inner in parts:
        if inner == 0 or len(parts) != 2:
            continue
        hidden = net.layers[inner - 1]
        around = next(source for source in parts if source != inner)
        dense = (*parts.values(), *hidden.connections)
        if (
            hidden.sources == (around,)
            and hidden.is_plain
            and passing[inner - 1]
            and _fed_by(net, inner) == {number}
            and all(isinstance(connection, Dense) for connection in dense)
        ):
            fold, printed = _folds(net, parts[around], around)
            printed = printed if fold == 1 else max(layer.weight.shape)
            return Member(number, inner, fold, printed), around
    return None


def _folds(net: LayeredNet, connection: AbstractConnection, source: int) -> tuple[int, int]:
    """The fold and the printed one of a connection; (0, 0) if it has none."""
    if isinstance(connection, Conv):
        *window, channels, _ = connection.kernel.shape
        fold = min(channels, math.prod(window))
        return fold, fold
    if not isinstance(connection, Dense):
        return 0, 0
    *positions, channels = net.in_shape if source == 0 else net.layers[source - 1].shape
    fold = min(channels, math.prod(positions))
    return fold, 1 if math.prod(positions) == 1 else max(connection.weight.shape)


def _fed_by(net: LayeredNet, source: int) -> set[int]:
    layers = enumerate(net.layers, start=1)
    return {number for number, layer in layers if source in layer.sources}
