"""Networks of the directions of weight matrices alone."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._activation import PiecewiseLinear
from ._base import AbstractNet, Gate
from ._invariant import Invariant
from ._mlp import MLP


class WeightNormalised(AbstractNet):
    r"""$\hat f(x)$: an MLP with the matrices $V_l/\|V_l\|_F$ in place of $V_l$.

    Gradient flow of the $V_l$ from $\|V_l\|_F = 1$ stays there: it is the projected flow on
    the product of the spheres (Galanti & Poggio, App. E).
    """

    mlp: MLP

    @property
    def unit(self) -> MLP:
        """The MLP of the V_l/‖V_l‖_F; a matrix of zeros stays."""

        def unit(v: Array) -> Array:
            size = jnp.linalg.norm(v)
            return v / jnp.where(size > 0, size, 1)

        return jax.tree.map(unit, self.mlp)

    @property
    def activations(self) -> tuple[PiecewiseLinear, ...]:
        """Those of the MLP."""
        return self.mlp.activations

    @property
    def weights(self) -> tuple[Float[Array, "_ _"], ...]:
        """V_1, …, V_L."""
        return self.mlp.weights

    @property
    def knows_kinks(self) -> bool:
        """Yes."""
        return True

    @property
    def degree(self) -> None:
        """None: the norms have no effect."""

    @property
    def in_size(self) -> int:
        """The number of input features."""
        return self.mlp.in_size

    @property
    def out_size(self) -> int:
        """The number of outputs."""
        return self.mlp.out_size

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """V1 … VL."""
        return tuple(f"V{i + 1}" for i in range(self.mlp.degree))

    def forward(
        self, x: Float[Array, "samples in"], gates: Sequence[Gate]
    ) -> tuple[Float[Array, "samples out"], tuple[Float[Array, "samples _"], ...]]:
        """Those of the MLP of unit matrices."""
        return self.unit.forward(x, gates)

    def gradient_norms(
        self,
        x: Float[Array, "samples in"],
        values: tuple[Float[Array, "samples _"], ...],
    ) -> tuple[Float[Array, "samples _"], ...]:
        """As of the MLP of unit matrices, at ‖V_l‖ = 1."""
        return self.unit.gradient_norms(x, values)

    def conserved(self) -> tuple[Invariant, ...]:
        """Every ‖V_l‖, and so the differences of neighbours' squares."""
        flat = [v.ravel() for v in self.weights]
        return tuple(
            Invariant(f"layers {i}, {i + 1}", "norms", a[None, :], b[:, None], 0)
            for i, (a, b) in enumerate(zip(flat[:-1], flat[1:], strict=True), start=1)
        )
