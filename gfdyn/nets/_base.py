"""What every network offers to flows, solvers and diagnostics."""

import abc
from collections.abc import Callable, Sequence

import equinox as eqx
from jaxtyping import Array, Float

from ._activation import FrozenGate, PiecewiseLinear
from ._invariant import Invariant


Gate = Callable[[Array], Array]


class AbstractNet(eqx.Module):
    """A feed-forward network that *is* its parameters: every array leaf is trained.

    Subclasses write their forward pass against `gates`, one callable `z -> a` for each
    hidden layer, and get live activations, frozen gates and kinks from it. A network of
    one's own need not be a subclass: `gf.nets.wrap` takes any `eqx.Module` with `__call__`,
    or with this `forward` alone, and provides the rest.
    """

    @property
    @abc.abstractmethod
    def activations(self) -> tuple[PiecewiseLinear, ...]:
        """The activation of each hidden layer."""

    @property
    def has_kinks(self) -> bool:
        """Whether any activation bends."""
        return not all(sigma.is_linear for sigma in self.activations)

    @property
    @abc.abstractmethod
    def knows_kinks(self) -> bool:
        """Whether it bends nowhere but where an activation does."""

    @property
    @abc.abstractmethod
    def weights(self) -> tuple[Float[Array, "*stack _ _"], ...]:
        """The weight matrices W_1 … W_L of the layers, the last one the output: all weights
        into each unit as a row, (n_l, n_{l-1}); of convolutions into each channel."""

    @property
    @abc.abstractmethod
    def degree(self) -> int | None:
        """The degree of positive homogeneity in the parameters, None if there is none."""

    @property
    @abc.abstractmethod
    def in_size(self) -> int:
        """The number of input features."""

    @property
    @abc.abstractmethod
    def out_size(self) -> int:
        """The number of outputs."""

    @property
    @abc.abstractmethod
    def parameter_names(self) -> tuple[str, ...]:
        """A name for each leaf, in the order of `jax.tree.leaves(net)`."""

    @abc.abstractmethod
    def forward(
        self, x: Float[Array, "samples in"], gates: Sequence[Gate]
    ) -> tuple[Float[Array, "samples out"], tuple[Float[Array, "samples _"], ...]]:
        """Outputs and the pre-activations of each hidden layer, under the given gates."""

    @abc.abstractmethod
    def gradient_norms(
        self,
        x: Float[Array, "samples in"],
        values: tuple[Float[Array, "samples _"], ...],
    ) -> tuple[Float[Array, "samples _"], ...]:
        """About ‖∂z/∂θ‖ for each pre-activation z, under gates of the given values: 0
        exactly where it is 0, within a small factor elsewhere."""

    @abc.abstractmethod
    def conserved(self) -> tuple[Invariant, ...]:
        """What gradient flow conserves: of each hidden layer where that has a form."""

    def invariants(self) -> tuple[Float[Array, "..."], ...]:
        """The values of what gradient flow conserves, all of degree two in θ."""
        return tuple(invariant.value for invariant in self.conserved())

    def __call__(self, x: Float[Array, "samples in"]) -> Float[Array, "samples out"]:
        """The outputs f_θ(x), one row a sample."""
        return self.forward(x, self.activations)[0]

    def preactivations(
        self, x: Float[Array, "samples in"]
    ) -> tuple[Float[Array, "samples _"], ...]:
        """The pre-activations z_l of each hidden layer, (N, n_l)."""
        return self.forward(x, self.activations)[1]

    def frozen_gates(self, x: Float[Array, "samples in"]) -> tuple[FrozenGate, ...]:
        """The gates as they stand at this point, frozen."""
        return tuple(
            FrozenGate(activation.gate(z))
            for activation, z in zip(self.activations, self.preactivations(x), strict=True)
        )
