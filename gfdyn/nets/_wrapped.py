"""Networks of one's own: any Equinox module that maps inputs to outputs."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._activation import FrozenGate, PiecewiseLinear, relu
from ._base import AbstractNet, Gate
from ._foreign import remedy_for
from ._from_equinox import from_equinox
from ._homogeneity import degree_by_values
from ._invariant import Invariant


# How a model is called: with one sample, with rows, or by `forward(x, gates)`
Call = Literal["sample", "rows", "gates"]

# Rows of input with which a model is tried.
_PROBES = 5


class Wrapped(AbstractNet):
    """A model of one's own, its floating arrays trained; see `wrap`.

    Attributes:
        parameters: the model's floating arrays.
        rest: the model without them.
        call: how it is called.
        in_shape: of one input; a row of x is that, flattened.
        num_outputs: their number.
        gates: the activations of a model that is written against gates.
        found_degree: the degree of homogeneity, None if there is none.
        reason: why it is no `MLP` or `LayeredNet` whose kinks are known, in words that name
            the layer or function; None of a model written against gates.
    """

    parameters: Any
    rest: Any = eqx.field(static=True)
    call: Call = eqx.field(static=True)
    in_shape: tuple[int, ...] = eqx.field(static=True)
    num_outputs: int = eqx.field(static=True)
    gates: tuple[PiecewiseLinear, ...] = eqx.field(static=True)
    found_degree: int | None = eqx.field(static=True)
    reason: str | None = eqx.field(static=True)

    @property
    def model(self) -> Any:
        """The model with these parameters."""
        return eqx.combine(self.parameters, self.rest)

    @property
    def activations(self) -> tuple[PiecewiseLinear, ...]:
        """Those of a model that is written against gates; none that are known of others."""
        return self.gates

    @property
    def knows_kinks(self) -> bool:
        """Whether the model is written against gates; others bend unseen."""
        return self.call == "gates"

    @property
    def weights(self) -> tuple[Float[Array, "*stack _ _"], ...]:
        """The arrays that are matrices; all of them as rows, if there is none."""
        leaves = jax.tree.leaves(self.parameters)
        matrices = tuple(leaf for leaf in leaves if leaf.ndim == 2)
        return matrices or tuple(leaf.reshape(1, -1) for leaf in leaves)

    @property
    def degree(self) -> int | None:
        """As it was found when the model was wrapped."""
        return self.found_degree

    @property
    def in_size(self) -> int:
        """The number of input features."""
        return math.prod(self.in_shape)

    @property
    def out_size(self) -> int:
        """The number of outputs."""
        return self.num_outputs

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Their places in the model."""
        paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(self.parameters)]
        return tuple(
            jax.tree_util.keystr(path, simple=True, separator=".") for path in paths
        )

    def forward(
        self, x: Float[Array, "samples in"], gates: Sequence[Gate]
    ) -> tuple[Float[Array, "samples out"], tuple[Float[Array, "samples _"], ...]]:
        """The model's outputs, row by row, and the pre-activations that it tells."""
        inputs = x.reshape(len(x), *self.in_shape)
        outputs, preactivations = _called(self.model, self.call, inputs, gates)
        return outputs.reshape(len(x), self.out_size), preactivations

    def gradient_norms(
        self,
        x: Float[Array, "samples in"],
        values: tuple[Float[Array, "samples _"], ...],
    ) -> tuple[Float[Array, "samples _"], ...]:
        """‖∂z/∂θ‖ of each pre-activation, from its derivative by each parameter."""
        gates = tuple(map(FrozenGate, values))
        jacobians = jax.jacrev(lambda net: net.forward(x, gates)[1])(self)

        def norms(z: Array, jacobian: "Wrapped") -> Array:
            rows = [leaf.reshape(*z.shape, -1) for leaf in jax.tree.leaves(jacobian)]
            return jnp.sqrt(jnp.sum(jnp.concatenate(rows, axis=-1) ** 2, axis=-1))

        return tuple(map(norms, values, jacobians))

    def conserved(self) -> tuple[Invariant, ...]:
        """Nothing that is known."""
        return ()


def _called(
    model: Any, call: Call, x: Array, gates: Sequence[Gate]
) -> tuple[Array, tuple[Array, ...]]:
    """Outputs, and the pre-activations that a model written against gates tells."""
    if call == "gates":
        return model.forward(x, gates)
    return (model(x) if call == "rows" else jax.vmap(model)(x)), ()


def wrap(model: Any, in_shape: int | Sequence[int] | None = None) -> AbstractNet:
    """A network from any Equinox module that maps an input to outputs (out,), or rows
    (N, in) to rows (N, out).

    A model needs nothing but `__call__(x)`. An `eqx.nn.Linear`, `MLP` or `Sequential` of
    linear layers, convolutions, average pools and reshapes, with ReLU, leaky ReLU or
    nothing between them, becomes an `MLP` or `LayeredNet`, with exact kinks and conserved
    quantities. Others are taken as they are, and `Wrapped.reason` says what is in the way:
    all floating arrays are trained, nothing is known to be conserved, and
    `gf.solvers.Adaptive` integrates them; or `ExactKinks`, if the model is written against
    gates: `forward(x, gates)` as an `AbstractNet` has it, in the place of `__call__`, for
    ReLU, or beside `activations`, a `PiecewiseLinear` for each hidden layer. Their degree
    of homogeneity is looked for by numbers, f(cθ) = c^L f(θ) near θ; of a traced θ, near a
    point that is drawn.

    Args:
        model: called with one argument, or with gates.
        in_shape: of one input, such as (channels, height, width) of an image; a row of x is
            that, flattened. A number for a vector; None if an attribute of the model
            (`in_size`, `in_features`) or the shape of a matrix in it tells.

    Raises:
        TypeError: if the model is no Equinox module, trains nothing, or holds integer
            arrays, or floating ones of several dtypes.
        ValueError: if it cannot be called with one input, or returns something else than
            a vector of outputs.
    """
    if isinstance(model, AbstractNet):
        return model
    if not isinstance(model, eqx.Module):
        raise TypeError(
            f"model must be an equinox.Module, got {type(model).__name__}; "
            f"{remedy_for(model)}"
        )
    parameters, rest = eqx.partition(model, eqx.is_inexact_array)
    _check_leaves(model, parameters, rest)
    given = (in_shape,) if isinstance(in_shape, int) else in_shape
    known = from_equinox(model, given)
    if isinstance(known, AbstractNet):
        return known
    call, shape, outputs, gates = _call_and_sizes(model, parameters, given)
    reason = None if call == "gates" else known
    net = Wrapped(parameters, rest, call, shape, outputs, gates, None, reason)
    return dataclasses.replace(net, found_degree=degree_by_values(net))


def _check_leaves(model: Any, parameters: Any, rest: Any) -> None:
    dtypes = {str(leaf.dtype) for leaf in jax.tree.leaves(parameters)}
    name = type(model).__name__
    if len(dtypes) != 1:
        kinds = f"arrays of {sorted(dtypes)}; cast them to one dtype" if dtypes else "none"
        raise TypeError(f"{name} must have floating arrays to train; it has {kinds}.")
    for path, leaf in jax.tree_util.tree_leaves_with_path(rest):
        if eqx.is_array_like(leaf) and not isinstance(leaf, bool | int | float | complex):
            raise TypeError(
                f"{name}{jax.tree_util.keystr(path)} is an array that is not trained; make "
                "it floating, or a static field of Python numbers."
            )


def _call_and_sizes(
    model: Any, parameters: Any, given: Sequence[int] | None
) -> tuple[Call, tuple[int, ...], int, tuple[PiecewiseLinear, ...]]:
    """How it is called, the shape of an input, the number of outputs, and its gates."""
    dtype = jax.tree.leaves(parameters)[0].dtype
    told = getattr(model, "activations", None)
    gated = hasattr(model, "forward") and (told is not None or not callable(model))
    ways: tuple[Call, ...] = ("gates",) if gated else ("sample", "rows")
    gates: tuple[PiecewiseLinear, ...] = ()
    if gated:
        # There are not more hidden layers than arrays.
        relus = (relu(),) * len(jax.tree.leaves(parameters))
        gates = relus if told is None else tuple(told)
    found = [(size,) for size in _in_sizes(model, parameters)]
    shapes = found if given is None else [tuple(given)]
    failures: list[Exception] = []
    for shape in shapes:
        rows = jax.ShapeDtypeStruct((_PROBES, *shape), dtype)
        for call in ways:
            try:
                out, z = eqx.filter_eval_shape(_called, model, call, rows, gates)
                samples, *features = out.shape
            except Exception as failure:
                failures.append(failure)
                continue
            if samples == _PROBES and len(features) <= 1:
                gates = gates[: len(z)] if told is None else gates
                return call, shape, math.prod(features), gates
    tried = f"inputs of shape {', '.join(map(str, shapes))}" if shapes else "no input"
    lines = dict.fromkeys(str(failure).partition("\n")[0] for failure in failures)
    reason = f" ({'; '.join(lines)})" if lines else ""
    raise ValueError(
        f"{type(model).__name__} was tried with {tried}, and gave no outputs (out,) for "
        f"one, nor (N, out) for N of them{reason}. Give in_shape=, the shape of one input: "
        "a number, or (channels, height, width); its __call__ must take x alone, or its "
        "forward x and gates, one for each of its `activations`, all ReLU if it has none."
    )


def _in_sizes(model: Any, parameters: Any) -> Iterator[int]:
    """Numbers of inputs that the model may have, without repetition."""
    told = [getattr(model, name, None) for name in ("in_size", "in_features")]
    shapes = [leaf.shape for leaf in jax.tree.leaves(parameters) if leaf.ndim == 2]
    told += [columns for _, columns in shapes] + [rows for rows, _ in shapes]
    yield from dict.fromkeys(size for size in told if isinstance(size, int))
