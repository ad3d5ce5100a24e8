"""What gradient flow conserves: differences of two Gram matrices of weights."""

from typing import Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float


Form = Literal["full", "blocks", "diagonal", "norms"]


class Invariant(eqx.Module):
    r"""A conserved quantity, $M = W_2^\top W_2 - W_1 W_1^\top$ or its diagonal.

    $W_1$ are the weights into the units of a layer, $W_2$ those out of them, in the
    flattenings that make it true: weights of all connections side by side, a bias as one
    more of them; a convolution by its channels (Le & Jegelka, Theorem 1 as corrected).
    Both are linear in θ. Under weight decay $\lambda\|\theta\|^2$ it falls as
    $e^{-4\lambda t}$.

    Attributes:
        name: of what it is conserved: `"layer 2"`, `"vertices 3, 4"`, `"cuts 1, 3"`.
        form: what is conserved of M. `"full"`: all of it (linear units). `"blocks"`: the
            diagonal, which is the balance of each unit; and $M_{uv}$ for as long as u and v
            have the same gates on every sample, at every position. `"diagonal"`: that
            alone. `"norms"`: M is 1 × 1, the difference of the squared norms of two sets of
            weights that every path meets once.
        incoming: W_1, (units, fan in).
        outgoing: W_2, (fan out, units).
        layer: the hidden layer of the units, from 1; 0 for norms.
        units: which of its units they are; None for all, at every position.
    """

    name: str = eqx.field(static=True)
    form: Form = eqx.field(static=True)
    incoming: Float[Array, "units fan_in"]
    outgoing: Float[Array, "fan_out units"]
    layer: int = eqx.field(static=True)
    units: tuple[int, ...] | None = eqx.field(static=True, default=None)

    @property
    def matrix(self) -> Float[Array, "units units"]:
        """M, conserved or not."""
        return self.outgoing.T @ self.outgoing - self.incoming @ self.incoming.T

    @property
    def diagonal(self) -> Float[Array, " units"]:
        """The diagonal of M."""
        outgoing = jnp.sum(self.outgoing**2, axis=0)
        return outgoing - jnp.sum(self.incoming**2, axis=1)

    @property
    def value(self) -> Array:
        """What is conserved always: M, (units, units), or its diagonal, (units,)."""
        return self.matrix if self.form == "full" else self.diagonal
