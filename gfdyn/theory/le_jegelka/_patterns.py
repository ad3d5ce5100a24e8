"""Which neurons have the same activation pattern, as each version counts them."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool

from ..._site_motion import at_units, equal_columns
from ..._types import Gates
from ...diagnostics import signatures
from ...nets import AbstractNet
from ...problem import Problem
from ._version import PatternVersion, check_version


# |z| below this part of the layer's largest is a kink.
_KINK = 1e-9


def same_patterns(
    problem: Problem, net: AbstractNet, gates: Gates | None, version: PatternVersion
) -> dict[str, Bool[Array, "units units"]]:
    r"""Between which neurons (channels) of each invariant in full or in blocks $M_{uv}$ is
    claimed to be conserved: all linear ones, and of the others:

    - `"first"` (the first version): all.
    - `"second"` (the correction): those active, z ≥ 0, on the same samples. A neuron that
      slides counts as active.
    - `"corrected"`: those with the same gates on every sample, at every position; without
      gates, of the same strict signs.

    Args:
        gates: values of the gates, (N, n_l) for each hidden layer, of which `"corrected"`
            alone makes use; or None.
        version: whose claim, see above.

    Returns:
        By the name of each invariant, for which (u, v) conservation is claimed.

    Raises:
        ValueError: on another version.
    """
    check_version(version, PatternVersion)
    matrices = [m for m in net.conserved() if m.form in ("full", "blocks")]
    if version == "corrected" and gates is None:
        classes = signatures(problem, net)
        return {m.name: equal_columns(classes[m.name][None]) for m in matrices}
    sites: Any = gates
    if version == "second":
        z = net.preactivations(problem.data.x)
        sites = tuple(a >= -_KINK * jnp.max(jnp.abs(a)) for a in z)
    return {
        m.name: jnp.ones((len(m.incoming),) * 2, bool)
        if version == "first" or m.form == "full"
        else equal_columns(at_units(m, sites))
        for m in matrices
    }
