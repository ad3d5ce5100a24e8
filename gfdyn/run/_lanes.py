"""Functions whose lanes under `jax.vmap` run in turn.

Side by side, both branches of every `cond` are taken in all lanes, and loops go on until
the last lane has ended: programs that branch much then cost more than one lane at a time,
and take longer to compile.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax


Function = Callable[..., tuple[Any, ...]]


def lanes_in_turn(function: Callable[..., Any], loop_kind: str) -> Callable[..., Any]:
    """The function of pytrees, one lane at a time under `jax.vmap`.

    Its derivatives, in the mode that goes with the kind of its loops ("lax" forward,
    "checkpointed" reverse), take lanes in turn as well; several of one and the same lane
    (`jax.jacfwd`, `jax.jacrev`) are taken side by side.
    """
    differentiable = _forward if loop_kind == "lax" else _reverse
    in_turn = _on_arrays(lambda *args: (function(*args),), differentiable)
    return lambda *args: jax.tree.map(_constant_if_discrete, in_turn(*args)[0])


def _constant_if_discrete(leaf: Any) -> Any:
    """The same, without the empty tangent that a custom rule gives integers, which what
    cannot be differentiated, such as `eqx.error_if`, does not take."""
    if not eqx.is_array(leaf) or eqx.is_inexact_array(leaf):
        return leaf
    return jax.lax.bitwise_or(leaf, leaf)


def _on_arrays(
    function: Function, transform: Callable[["_OfArrays"], Function]
) -> Function:
    """The function, transformed as one of the arrays in its arguments alone."""

    def call(*args: Any) -> tuple[Any, ...]:
        arrays, rest = eqx.partition(args, eqx.is_array)
        of_arrays = _OfArrays(function, rest)
        return of_arrays.whole(transform(of_arrays)(arrays))

    return call


def _forward(of_arrays: "_OfArrays") -> Function:
    in_turn = eqx.filter_custom_jvp(_in_turn(of_arrays))

    @in_turn.def_jvp
    def _(primals: Any, tangents: Any) -> tuple[Any, Any]:
        def push(primals: Any, tangents: Any) -> tuple[Any, Any]:
            return eqx.filter_jvp(of_arrays, primals, tangents)

        return _in_turn(push, linear=(False, True))(primals, tangents)

    return in_turn


def _reverse(of_arrays: "_OfArrays") -> Function:
    in_turn = eqx.filter_custom_vjp(_in_turn(of_arrays))

    @in_turn.def_fwd
    def _(perturbed: Any, arrays: Any) -> tuple[Any, Any]:
        def linearise(arrays: Any) -> tuple[Any, Any]:
            moving, still = eqx.partition(arrays, perturbed)

            def smooth_and_other(moving: Any) -> Any:
                out = of_arrays(eqx.combine(moving, still))
                return eqx.partition(out, eqx.is_inexact_array)

            smooth, push, other = jax.linearize(smooth_and_other, moving, has_aux=True)
            types = jax.tree.map(jax.typeof, moving)
            return eqx.combine(smooth, other), (push, types)

        return _in_turn(linearise)(arrays)

    @in_turn.def_bwd
    def _(linear: Any, cotangents: Any, perturbed: Any, arrays: Any) -> Any:
        del perturbed, arrays

        def pull(linear: Any, cotangents: Any) -> tuple[Any]:
            push, types = linear

            # A result without a cotangent is none: 0 for it, times an infinite derivative,
            # is NaN.
            def results(moving: Any) -> Any:
                return jax.tree.map(
                    lambda cotangent, pushed: None if cotangent is None else pushed,
                    cotangents,
                    push(moving),
                    is_leaf=lambda leaf: leaf is None,
                )

            return jax.linear_transpose(results, types)(cotangents)

        return _in_turn(pull, linear=(True,))(linear, cotangents)[0]

    return in_turn


def _in_turn(function: Function, linear: tuple[bool, ...] | None = None) -> Function:
    """The same, but not differentiable.

    If it is linear in the last argument, `linear` tells for each of its results whether
    that depends on it.
    """

    def batched(of_arrays: "_OfArrays") -> Function:
        in_turn = jax.custom_batching.custom_vmap(of_arrays)

        @in_turn.def_vmap
        def _(size: int, has_lanes: list[Any], arrays: tuple[Any, ...]) -> tuple[Any, Any]:
            (has_lanes,) = has_lanes
            if linear is None or any(jax.tree.leaves(has_lanes[:-1])):
                with_lanes, without = eqx.partition(arrays, has_lanes)
                out = jax.lax.map(
                    lambda of_a_lane: in_turn(eqx.combine(of_a_lane, without)), with_lanes
                )
                return out, jax.tree.map(lambda _: True, out)
            # No branch depends on the lane.
            axes = jax.tree.map(lambda lanes: 0 if lanes else None, has_lanes)
            out_axes = tuple(0 if depends else None for depends in linear)
            out = jax.vmap(of_arrays, (axes,), out_axes, axis_size=size)(arrays)
            return out, tuple(
                jax.tree.map(lambda _, depends=depends: depends, part)
                for depends, part in zip(linear, out, strict=True)
            )

        return in_turn

    return _on_arrays(function, batched)


class _OfArrays:
    """A function of pytrees as one of their arrays alone, given what else they hold."""

    def __init__(self, function: Function, rest: Any):
        self.function, self.rest = function, rest

    def __call__(self, arrays: Any) -> tuple[list[Any], ...]:
        """The arrays of each of the function's results."""
        out = tuple(self.function(*eqx.combine(arrays, self.rest)))
        arrays_out, self.rest_out = eqx.partition(out, eqx.is_array)
        self.trees = [jax.tree.structure(part) for part in arrays_out]
        return tuple(jax.tree.leaves(part) for part in arrays_out)

    def whole(self, parts: tuple[list[Any], ...]) -> tuple[Any, ...]:
        """The function's results, of their arrays; what else they hold is as it was when
        the function was traced."""
        arrays_out = map(jax.tree.unflatten, self.trees, parts)
        return eqx.combine(tuple(arrays_out), self.rest_out)


def lane(batch: Any, index: int | tuple[int, ...]) -> Any:
    """One lane of a batch that `vmap` made: the entries of its arrays at an index."""
    return jax.tree.map(lambda leaf: leaf[index] if eqx.is_array(leaf) else leaf, batch)
