"""Lanes: runs of one shape, side by side in one program, on one device or several."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, PartitionSpec


def stack(trees: Sequence[Any]) -> Any:
    """Trees of one structure as one, their arrays with a leading axis; a single one as it
    is."""
    if len(trees) == 1:
        return trees[0]
    arrays, rest = eqx.partition(list(trees), eqx.is_array)
    return eqx.combine(jax.tree.map(lambda *leaves: jnp.stack(leaves), *arrays), rest[0])


def unstack(tree: Any, lanes: int) -> list[Any]:
    """The trees that were stacked, of NumPy's arrays."""
    if lanes == 1:
        return [tree]
    arrays, rest = eqx.partition(tree, lambda leaf: isinstance(leaf, np.ndarray))
    return [
        eqx.combine(jax.tree.map(lambda leaf, i=i: leaf[i], arrays), rest)
        for i in range(lanes)
    ]


@eqx.filter_jit
def each_lane(
    function: Callable[..., Any], lanes: int, devices: int, *stacked: Any, shared: Any = ()
) -> Any:
    """`function(*of a lane, *shared)` in all lanes, spread over the devices.

    The function itself is static: give one of a module, for a closure compiles anew.
    """
    if lanes == 1:
        return function(*stacked, *shared)

    def in_lanes(arrays: Any, shared: Any) -> Any:
        return eqx.filter_vmap(
            lambda *of_a_lane: function(*of_a_lane, *shared),
        )(*eqx.combine(arrays, rest))

    arrays, rest = eqx.partition(stacked, eqx.is_array)
    if devices == 1:
        return in_lanes(arrays, shared)
    mesh = jax.make_mesh(
        (devices,), ("lanes",), (AxisType.Auto,), devices=jax.devices()[:devices]
    )
    spread, everywhere = PartitionSpec("lanes"), PartitionSpec()
    return jax.shard_map(
        in_lanes,
        mesh=mesh,
        in_specs=(spread, everywhere),
        out_specs=spread,
        check_vma=False,
    )(arrays, shared)
