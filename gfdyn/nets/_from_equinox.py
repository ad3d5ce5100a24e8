"""Nets from stacks of Equinox's layers."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ._activation import PiecewiseLinear
from ._layered import LayeredNet
from ._mlp import MLP
from ._stack import NoStack, Stack


_AVERAGES = (eqx.nn.AvgPool1d, eqx.nn.AvgPool2d, eqx.nn.AvgPool3d)

# Where a function is looked at: a piecewise linear one is known by its two slopes.
_POINTS = np.concatenate([-np.logspace(3, -3, 25), np.logspace(-3, 3, 25)])


def from_equinox(model: Any, in_shape: Sequence[int] | None) -> MLP | LayeredNet | str:
    """The net of `eqx.nn` layers that are linear and activations that are piecewise linear,
    one after the other; or why it has none.

    Args:
        model: `eqx.nn.Linear`, `eqx.nn.MLP` or `eqx.nn.Sequential`.
        in_shape: of one input; None if the first layer tells, as `eqx.nn.Linear` does.
    """
    try:
        parts = list(_parts(model))
        stack = Stack(_told(parts) if in_shape is None else in_shape)
        for part in parts:
            _add(stack, part)
        return stack.net()
    except NoStack as reason:
        return str(reason)


def _told(parts: Sequence[Any]) -> tuple[int, ...]:
    """The shape of an input, as the first layer tells it; () if it does not."""
    told = isinstance(parts[0], eqx.nn.Linear) if parts else False
    return (int(parts[0].in_features),) if told else ()


def _parts(model: Any) -> Iterator[Any]:
    """Layers and the functions between them."""
    if isinstance(model, eqx.nn.Lambda):
        yield model.fn
    elif isinstance(model, eqx.nn.MLP):
        if model.scan:
            raise NoStack("MLP has scan=True")
        *hidden, last = model.layers
        for layer in hidden:
            yield from (*_parts(layer), model.activation)
        yield from (*_parts(last), model.final_activation)
    elif isinstance(model, eqx.nn.Sequential):
        for layer in model.layers:
            yield from _parts(layer)
    elif isinstance(model, eqx.nn.Linear) and "scalar" in (
        model.in_features,
        model.out_features,
    ):
        raise NoStack("Linear has scalars, and not vectors")
    elif not isinstance(model, eqx.nn.Identity):
        yield model


def _add(stack: Stack, part: Any) -> None:
    """Put a layer or a function on the stack."""
    if isinstance(part, eqx.nn.Linear):
        stack.linear(part.weight, part.bias)
    elif isinstance(part, eqx.nn.Conv):
        if part.padding_mode != "ZEROS" or part.groups != 1 or set(part.dilation) != {1}:
            raise NoStack(
                f"{_name(part)} has padding_mode={part.padding_mode!r}, "
                f"groups={part.groups}, dilation={part.dilation}"
            )
        bias = None if part.bias is None else part.bias.reshape(-1)
        stack.convolution(part.weight, bias, part.stride, part.padding)
    elif isinstance(part, _AVERAGES):
        if part.use_ceil:
            raise NoStack(f"{_name(part)} has use_ceil=True")
        stack.average_pool(part.kernel_size, part.stride, part.padding)
    elif isinstance(part, eqx.Module) or not callable(part):
        raise NoStack(f"{_name(part)} is no linear layer")
    elif (sigma := _piecewise_linear(part, stack.shape)) is not None:
        stack.activation(sigma)
    elif (shape := _reshaped(part, stack.shape)) is not None:
        stack.reshape(shape)
    else:
        raise NoStack(f"{_name(part)} is neither linear nor a (leaky) ReLU")


def _name(part: Any) -> str:
    return getattr(part, "__name__", type(part).__name__)


def _image(function: Callable[..., Any], probes: np.ndarray) -> np.ndarray | None:
    """Its values one by one, under jit as well; None where it does not take what it is
    given."""
    try:
        # Compiled, as functions with derivatives of their own go to the trace outside.
        with jax.ensure_compile_time_eval():
            return np.asarray(jax.jit(jax.vmap(function))(jnp.asarray(probes)))
    # Anything may be raised by a function that is not meant for this shape.
    except Exception:
        return None


def _probes(shape: tuple[int, ...]) -> np.ndarray:
    """Inputs in which each place sees all points, and its neighbours others."""
    places = np.arange(math.prod(shape)).reshape(shape)
    return _POINTS[np.add.outer(np.arange(len(_POINTS)), places) % len(_POINTS)]


def _piecewise_linear(
    function: Callable[..., Any], shape: tuple[int, ...]
) -> PiecewiseLinear | None:
    """The function as an activation, if it is z for z > 0 and a multiple of z elsewhere."""
    points = _probes(shape)
    values = _image(function, points)
    if values is None or values.shape != points.shape:
        return None
    precision = float(jnp.finfo(values.dtype).eps)
    first = float(values.reshape(-1)[0] / points.reshape(-1)[0])
    # ReLU's is not -0.0.
    slope = round(first, 12 if precision < 1e-12 else 6) + 0.0
    expected = np.where(points > 0, points, slope * points)
    if not np.allclose(values, expected, rtol=8 * precision, atol=0.0):
        return None
    return PiecewiseLinear(slope)


def _reshaped(
    function: Callable[..., Any], shape: tuple[int, ...]
) -> tuple[int, ...] | None:
    """The shape that the function gives its input, if it does nothing else."""
    numbered = np.arange(1.0, math.prod(shape) + 1).reshape(1, *shape)
    probes = np.concatenate([numbered, -numbered, _probes(shape)])
    values = _image(function, probes)
    if values is None or not np.array_equal(
        values.ravel(), np.asarray(jnp.asarray(probes)).ravel()
    ):
        return None
    return values.shape[1:]
