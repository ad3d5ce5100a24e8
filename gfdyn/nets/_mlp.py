"""The bias-free multi-layer perceptron."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, DTypeLike, Float, PRNGKeyArray

from .._keys import check_key
from .._keywords import suggest_keywords
from ._activation import PiecewiseLinear, activation
from ._base import AbstractNet, Gate
from ._initialisation import Initialisation, gaussian
from ._invariant import Invariant


ActivationSpec = str | PiecewiseLinear | Sequence[str | PiecewiseLinear]


_NO_BIASES = (
    "gf.nets.MLP has none; build it by gf.nets.sequential(in_size, "
    "[gf.nets.dense(width, bias=True), ...], key=...)."
)


class MLP(AbstractNet):
    r"""A bias-free network $f(x) = W_L \sigma_{L-1}(\dots \sigma_1(W_1 x))$.

    The last layer is linear. Positively homogeneous of degree $L$, the number of weight
    matrices.
    """

    matrices: tuple[Float[Array, "*stack _ _"], ...]
    hidden_activations: tuple[PiecewiseLinear, ...] = eqx.field(static=True)

    @suggest_keywords(**dict.fromkeys(("bias", "biases", "use_bias"), _NO_BIASES))
    def __init__(
        self,
        widths: Sequence[int],
        *,
        key: PRNGKeyArray,
        scale: ArrayLike = 1.0,
        activation: ActivationSpec = "relu",
        init: Initialisation | None = None,
        dtype: DTypeLike | None = None,
    ):
        """Draw a network of the given widths.

        Args:
            widths: n_0 (inputs), n_1, …, n_L (outputs).
            key: seeds the draw; float32 and float64 nets agree up to rounding.
            scale: standard deviation of every entry; ignored when `init` is given.
            activation: a name, a `PiecewiseLinear`, or one of these for each hidden layer.
            init: another initialisation of `gf.nets`, `init(key, widths, dtype)`.
            dtype: of the parameters; jax's default float if None.

        Raises:
            TypeError: on a key of another kind, or widths that are no whole numbers.
            ValueError: on fewer than two widths, a width below 1, or an unknown activation.
        """
        widths = _whole(widths)
        dtype = jnp.zeros((), dtype).dtype
        if not jnp.issubdtype(dtype, jnp.floating):
            raise ValueError(f"dtype={dtype} must be a floating dtype such as float32.")
        check_key(key)
        init = gaussian(scale) if init is None else init
        self.matrices = init(key, widths, dtype)
        self.hidden_activations = activations_of(activation, len(widths) - 2)

    @classmethod
    def from_weights(
        cls,
        weights: Sequence[ArrayLike | Sequence],
        activation: ActivationSpec = "relu",
    ) -> "MLP":
        """The network with weight matrices W_1 … W_L, W_l of shape (n_l, n_{l-1}).

        Raises:
            ValueError: if a matrix is not 2-D, not floating, or does not fit the one
                before it.
        """
        matrices = tuple(jnp.asarray(w) for w in weights)
        _check_chain(matrices)
        net = object.__new__(cls)
        object.__setattr__(net, "matrices", matrices)
        object.__setattr__(
            net, "hidden_activations", activations_of(activation, len(matrices) - 1)
        )
        return net

    @property
    def weights(self) -> tuple[Float[Array, "*stack _ _"], ...]:
        """The weight matrices W_1 … W_L."""
        return self.matrices

    @property
    def activations(self) -> tuple[PiecewiseLinear, ...]:
        """The activation of each hidden layer."""
        return self.hidden_activations

    @property
    def knows_kinks(self) -> bool:
        """Yes."""
        return True

    @property
    def degree(self) -> int:
        """L, the number of weight matrices."""
        return len(self.matrices)

    @property
    def in_size(self) -> int:
        """The number of input features."""
        return self.matrices[0].shape[-1]

    @property
    def out_size(self) -> int:
        """The number of outputs."""
        return self.matrices[-1].shape[-2]

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """W1 … WL."""
        return tuple(f"W{i + 1}" for i in range(self.degree))

    def forward(
        self, x: Float[Array, "samples in"], gates: Sequence[Gate]
    ) -> tuple[Float[Array, "samples out"], tuple[Float[Array, "samples _"], ...]]:
        """Outputs and pre-activations z_l = a_{l-1} W_lᵀ, a_l = gate_l(z_l)."""
        a, preactivations = x, []
        for w, gate in zip(self.matrices[:-1], gates, strict=True):
            preactivations.append(a @ w.T)
            a = gate(preactivations[-1])
        return a @ self.matrices[-1].T, tuple(preactivations)

    def gradient_norms(
        self,
        x: Float[Array, "samples in"],
        values: tuple[Float[Array, "samples _"], ...],
    ) -> tuple[Float[Array, "samples _"], ...]:
        r"""About ‖∂z/∂θ‖ of each pre-activation, (N, n_l), as if the gradients of
        different units were orthogonal (they are in the first hidden layer):

        $$q_l = \|a_{l-1}\|^2 + \sum_j W_{l,\cdot j}^2 \, \text{gate}_j^2 \, q_{l-1,j}$$
        """
        a, squares, norms = x, jnp.zeros_like(x), []
        for w, value in zip(self.matrices[:-1], values, strict=True):
            own = jnp.sum(a**2, axis=1, keepdims=True)
            squares = own + squares @ (w**2).T
            norms.append(jnp.sqrt(squares))
            a, squares = value * (a @ w.T), value**2 * squares
        return tuple(norms)

    def conserved(self) -> tuple[Invariant, ...]:
        """For each hidden layer, what gradient flow conserves.

        A linear layer conserves W_{l+1}ᵀW_{l+1} − W_l W_lᵀ, (n_l, n_l); a (leaky) ReLU
        layer its diagonal, (n_l,): the balance of each neuron. (Le & Jegelka, Theorem 1;
        Timor et al., Lemma 9.)
        """
        pairs = zip(self.matrices[:-1], self.matrices[1:], strict=True)
        return tuple(
            Invariant(f"layer {i}", "full" if sigma.is_linear else "blocks", *pair, i)
            for i, (sigma, pair) in enumerate(
                zip(self.activations, pairs, strict=True), start=1
            )
        )


def check_mlp(net: Any) -> None:
    """Raise unless the net is a single MLP.

    Raises:
        TypeError: if it is of another kind.
        ValueError: if it is a stack of nets.
    """
    if not isinstance(net, MLP):
        raise TypeError(
            f"net is a {type(net).__name__}, whose layers are not one matrix each; this "
            "is for gf.nets.MLP only."
        )
    if net.weights[0].ndim != 2:
        raise ValueError(
            f"net is a stack of nets (W_1 has shape {net.weights[0].shape}); use jax.vmap."
        )


def activations_of(spec: ActivationSpec, num_hidden: int) -> tuple[PiecewiseLinear, ...]:
    """The activation of each hidden layer.

    Raises:
        ValueError: unless it is one for all, or a list of so many.
    """
    if not isinstance(spec, Sequence) or isinstance(spec, str):
        return (activation(spec),) * num_hidden
    if len(spec) != num_hidden:
        raise ValueError(
            f"activation lists {len(spec)} entries for {num_hidden} hidden layers; "
            "give one for each hidden layer, or a single one for all."
        )
    return tuple(activation(s) for s in spec)


def _whole(widths: Sequence[int]) -> tuple[int, ...]:
    """The widths of a network."""
    remedy = (
        "does not describe a network; give at least the number of inputs and of outputs, "
        "each 1 or more."
    )
    listed = isinstance(widths, Sequence | np.ndarray) and not isinstance(widths, str)
    if not listed or not all(isinstance(n, int | np.integer) for n in widths):
        raise TypeError(f"widths={widths!r} {remedy}")
    if len(widths) < 2 or min(widths) < 1:
        raise ValueError(f"widths={list(widths)} {remedy}")
    return tuple(int(n) for n in widths)


def _check_chain(matrices: tuple[Array, ...]) -> None:
    if not matrices:
        raise ValueError("weights is empty; give at least one matrix.")
    for i, w in enumerate(matrices):
        if w.ndim != 2 or not jnp.issubdtype(w.dtype, jnp.floating):
            raise ValueError(
                f"weights[{i}] has shape {w.shape} and dtype {w.dtype}; "
                "each must be a floating matrix of shape (n_l, n_{l-1})."
            )
        if w.dtype != matrices[0].dtype:
            raise ValueError(
                f"weights[{i}] is {w.dtype} but weights[0] is {matrices[0].dtype}; "
                "cast them to one dtype."
            )
        if i and w.shape[1] != matrices[i - 1].shape[0]:
            raise ValueError(
                f"weights[{i}] has shape {w.shape} but weights[{i - 1}] has "
                f"{matrices[i - 1].shape[0]} rows; W_l must be (n_l, n_{{l-1}})."
            )
