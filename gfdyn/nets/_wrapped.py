"""Networks of one's own: any Equinox module that maps inputs to outputs."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from .._tracing import is_concrete
from ._activation import FrozenGate, PiecewiseLinear
from ._base import AbstractNet, Gate
from ._foreign import remedy_for
from ._from_equinox import from_equinox
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
        found_degree: the degree of homogeneity, None if there is none.
        reason: why it is no `MLP` or `LayeredNet` whose kinks are known, in words that name
            the layer or function; None of a model written against gates.
    """

    parameters: Any
    rest: Any = eqx.field(static=True)
    call: Call = eqx.field(static=True)
    in_shape: tuple[int, ...] = eqx.field(static=True)
    num_outputs: int = eqx.field(static=True)
    found_degree: int | None = eqx.field(static=True)
    reason: str | None = eqx.field(static=True)

    @property
    def model(self) -> Any:
        """The model with these parameters."""
        return eqx.combine(self.parameters, self.rest)

    @property
    def activations(self) -> tuple[PiecewiseLinear, ...]:
        """Those of a model that is written against gates; none that are known of others."""
        return tuple(self.model.activations) if self.knows_kinks else ()

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
    `gf.solvers.Adaptive` integrates them; or `ExactKinks`, if the model has `activations`
    and `forward(x, gates)`, as an `AbstractNet` has. Their degree of homogeneity is looked
    for by numbers, f(cθ) = c^L f(θ) near θ.

    Args:
        model: called with one argument.
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
    call, shape, outputs = _call_and_sizes(model, parameters, given)
    reason = None if call == "gates" else known
    net = Wrapped(parameters, rest, call, shape, outputs, None, reason)
    return Wrapped(parameters, rest, call, shape, outputs, _degree(net), reason)


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
) -> tuple[Call, tuple[int, ...], int]:
    """How it is called, the shape of an input and the number of outputs."""
    dtype = jax.tree.leaves(parameters)[0].dtype
    gated = hasattr(model, "forward") and hasattr(model, "activations")
    ways: tuple[Call, ...] = ("gates",) if gated else ("sample", "rows")
    found = [(size,) for size in _in_sizes(model, parameters)]
    shapes = found if given is None else [tuple(given)]
    failures: list[Exception] = []
    for shape in shapes:
        rows = jax.ShapeDtypeStruct((_PROBES, *shape), dtype)
        for call in ways:
            gates = tuple(model.activations) if gated else ()
            try:
                out, _ = eqx.filter_eval_shape(_called, model, call, rows, gates)
                samples, *features = out.shape
            except Exception as failure:
                failures.append(failure)
                continue
            if samples == _PROBES and len(features) <= 1:
                return call, shape, math.prod(features)
    tried = f"inputs of shape {', '.join(map(str, shapes))}" if shapes else "no input"
    lines = dict.fromkeys(str(failure).partition("\n")[0] for failure in failures)
    reason = f" ({'; '.join(lines)})" if lines else ""
    raise ValueError(
        f"{type(model).__name__} was tried with {tried}, and gave no outputs (out,) for "
        f"one, nor (N, out) for N of them{reason}. Give in_shape=, the shape of one input: "
        "a number, or (channels, height, width); its __call__ must take x alone."
    )


def _in_sizes(model: Any, parameters: Any) -> Iterator[int]:
    """Numbers of inputs that the model may have, without repetition."""
    told = [getattr(model, name, None) for name in ("in_size", "in_features")]
    shapes = [leaf.shape for leaf in jax.tree.leaves(parameters) if leaf.ndim == 2]
    told += [columns for _, columns in shapes] + [rows for rows, _ in shapes]
    yield from dict.fromkeys(size for size in told if isinstance(size, int))


def _degree(net: Wrapped) -> int | None:
    """The degree of positive homogeneity, as multiples of a point drawn near θ tell, up to
    64 times and down to a 64th; None if there is none."""
    leaves, structure = jax.tree.flatten(net)
    if not is_concrete(*leaves):
        return None
    dtype = leaves[0].dtype
    keys = jr.split(jr.key(0), len(leaves) + 1)
    # Also where some arrays, such as biases, are 0.
    near = [
        leaf + jnp.maximum(jnp.std(leaf), 0.1) * jr.normal(key, leaf.shape, dtype)
        for leaf, key in zip(leaves, keys[1:], strict=True)
    ]
    x = jr.normal(keys[0], (_PROBES, net.in_size), dtype)

    def outputs(factor: float) -> Array:
        return jax.tree.unflatten(structure, [factor * leaf for leaf in near])(x)

    at, doubled = outputs(1.0), outputs(2.0)
    ratio = float(jnp.linalg.norm(doubled) / jnp.linalg.norm(at))
    if not (math.isfinite(ratio) and ratio > 1):
        return None
    degree = round(math.log2(ratio))
    # Far from θ, too: ReLU6 is homogeneous up to where it ends. But within float32.
    far = 2.0 ** min(6, 100 // max(degree, 1))
    rounding = 1e4 * float(jnp.finfo(dtype).eps) * jnp.max(jnp.abs(at))
    agree = [
        jnp.max(jnp.abs(outputs(c) / c**degree - at)) <= rounding
        for c in (0.5, 2.0, far, 1 / far)
    ]
    return degree if degree >= 1 and all(agree) else None
