"""Networks whose parameters move at rates of their own, or whose outputs are scaled."""

import math
from collections.abc import Mapping, Sequence

import equinox as eqx
import jax
from jaxtyping import Array, Float

from .._tracing import is_concrete
from ._activation import PiecewiseLinear
from ._base import AbstractNet, Gate
from ._foreign import check_net
from ._invariant import Invariant


class Rescaled(AbstractNet):
    r"""$\alpha f_\theta$ with $\theta_i = s_i \varphi_i$ for each parameter array, trained
    in $\varphi$.

    Gradient flow of φ moves θ by $d\theta_i/dt = -s_i^2 \nabla_i R$, conserves what the
    network conserves with φ in place of θ, and follows its kinks exactly; gradient descent
    of φ at rate η is that of θ at the rates $\eta s_i^2$.
    """

    coordinates: AbstractNet
    factors: tuple[float, ...] = eqx.field(static=True)
    output_scale: float = eqx.field(static=True)

    @property
    def net(self) -> AbstractNet:
        """The network of θ, its outputs not scaled."""
        leaves, structure = jax.tree.flatten(self.coordinates)
        scaled = [s * w for s, w in zip(self.factors, leaves, strict=True)]
        return jax.tree.unflatten(structure, scaled)

    @property
    def activations(self) -> tuple[PiecewiseLinear, ...]:
        """Those of the network."""
        return self.coordinates.activations

    @property
    def knows_kinks(self) -> bool:
        """As the network does."""
        return self.coordinates.knows_kinks

    @property
    def weights(self) -> tuple[Float[Array, "*stack _ _"], ...]:
        """The weight matrices of θ."""
        return self.net.weights

    @property
    def degree(self) -> int | None:
        """That of the network: the scales are constants."""
        return self.coordinates.degree

    @property
    def in_size(self) -> int:
        """The number of input features."""
        return self.coordinates.in_size

    @property
    def out_size(self) -> int:
        """The number of outputs."""
        return self.coordinates.out_size

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Those of the network."""
        return self.coordinates.parameter_names

    def forward(
        self, x: Float[Array, "samples in"], gates: Sequence[Gate]
    ) -> tuple[Float[Array, "samples out"], tuple[Float[Array, "samples _"], ...]]:
        """Those of the network of θ, its outputs scaled."""
        outputs, preactivations = self.net.forward(x, gates)
        return self.output_scale * outputs, preactivations

    def gradient_norms(
        self,
        x: Float[Array, "samples in"],
        values: tuple[Float[Array, "samples _"], ...],
    ) -> tuple[Float[Array, "samples _"], ...]:
        """Those of the network of θ times the largest scale: a bound."""
        largest = max(map(abs, self.factors))
        return tuple(largest * norms for norms in self.net.gradient_norms(x, values))

    def conserved(self) -> tuple[Invariant, ...]:
        """What the network conserves, of φ: with rates $d_l = s_l^2$ of the layers of an
        MLP, $W_{l+1}^\\top W_{l+1}/d_{l+1} - W_l W_l^\\top/d_l$ or its diagonal."""
        return self.coordinates.conserved()


def scaled_output(net: AbstractNet, scale: float) -> Rescaled:
    r"""The network $\alpha f_\theta$: the larger α, the lazier its training.

    A homogeneous network of degree L scaled by α is that of the parameters
    $\alpha^{1/L}\theta$. Lazy training (Chizat et al., 2019) divides the squared loss by
    α²: time then runs α² times slower.

    Args:
        net: any network.
        scale: α; part of the network's structure, so that another one compiles again.

    Raises:
        TypeError: if `net` is none, or `scale` no plain number.
        ValueError: unless α is finite and not 0.
    """
    coordinates, factors, before = _parts(net)
    scale = _number("scale", scale)
    if not (math.isfinite(scale) and scale != 0):
        raise ValueError(f"scale={scale} must be finite and not 0, such as 10.0.")
    return Rescaled(coordinates, factors, scale * before)


def with_rates(net: AbstractNet, rates: Sequence[float] | Mapping[str, float]) -> Rescaled:
    r"""The same network in coordinates in which its parameters move at rates of their own,
    $d\theta_i/dt = -d_i \nabla_i R$: gradient flow in a diagonal metric.

    Flows, descents and what they conserve follow, as the coordinates are
    $\varphi_i = \theta_i/\sqrt{d_i}$.

    Args:
        net: any network.
        rates: d_i of each array of `net.parameter_names` (the layers of an MLP), or by
            name, 1 for those not named; part of the network's structure.

    Raises:
        TypeError: if `net` is none, or a rate no plain number.
        ValueError: unless there is a positive, finite rate for each.
    """
    inner, before, scale = _parts(net)
    names = net.parameter_names
    if isinstance(rates, Mapping):
        if unknown := [name for name in rates if name not in names]:
            raise ValueError(
                f"rates names {unknown}, but the parameters are {', '.join(names)}."
            )
        rates = [rates.get(name, 1.0) for name in names]
    if len(rates) != len(names):
        raise ValueError(
            f"rates={list(rates)} has {len(rates)} entries, but there are {len(names)} "
            f"parameters: {', '.join(names)}."
        )
    numbers = [_number(f"rates[{name!r}]", d) for name, d in zip(names, rates, strict=True)]
    for name, rate in zip(names, numbers, strict=True):
        if not 0 < rate < math.inf:
            raise ValueError(
                f"rates[{name!r}]={rate} must be positive and finite; 1 leaves a "
                "parameter as it is."
            )
    factors = [math.sqrt(rate) for rate in numbers]
    leaves, structure = jax.tree.flatten(inner)
    coordinates = [w / s for w, s in zip(leaves, factors, strict=True)]
    composed = tuple(s * b for s, b in zip(factors, before, strict=True))
    return Rescaled(jax.tree.unflatten(structure, coordinates), composed, scale)


def _parts(net: AbstractNet) -> tuple[AbstractNet, tuple[float, ...], float]:
    """The coordinates, their factors and the scale of the outputs of any network."""
    check_net(net)
    if isinstance(net, Rescaled):
        return net.coordinates, net.factors, net.output_scale
    return net, (1.0,) * len(jax.tree.leaves(net)), 1.0


def _number(name: str, value: float) -> float:
    if not is_concrete(value) or isinstance(value, bool | str):
        raise TypeError(
            f"{name}={value} must be a plain number: it is part of the network's structure."
        )
    return float(value)
