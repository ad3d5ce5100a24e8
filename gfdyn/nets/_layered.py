"""Networks of layers joined by linear maps, along any feed-forward graph."""

import itertools
import math
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._activation import PiecewiseLinear
from ._base import AbstractNet, Gate
from ._batch_norm import BatchNorm
from ._composed import own_squares, passed_squares
from ._connections import AbstractConnection, Units, concatenated
from ._invariant import Invariant


class Layer(eqx.Module):
    r"""$z = n(\sum_s C_s a_s + b)$, $a = \sigma(z)$: what enters a layer, and what it does.

    Attributes:
        connections: C_s, one for each source.
        bias: b, one for each channel, or None.
        sources: the layers that they come from; 0 is the input. The sum over connections
            from several layers is what one from their concatenation would be.
        activation: σ; without effect in the last layer, the output.
        shape: positions (if any), then channels.
        norm: n, or None.
    """

    connections: tuple[AbstractConnection, ...]
    bias: Float[Array, " channels"] | None
    sources: tuple[int, ...] = eqx.field(static=True)
    activation: PiecewiseLinear = eqx.field(static=True)
    shape: tuple[int, ...] = eqx.field(static=True)
    norm: BatchNorm | None = None

    @property
    def channels(self) -> int:
        """The number of units at each position."""
        return self.shape[-1]

    @property
    def units(self) -> int:
        """The number of units: positions times channels."""
        return math.prod(self.shape)

    @property
    def weight(self) -> Float[Array, "channels fan_in"]:
        """All trained weights that enter but the bias, by channel."""
        trained = [c.incoming(self.channels) for c in self.connections if c.trained]
        return concatenated(trained, axis=1)

    @property
    def incoming(self) -> Float[Array, "channels fan_in"]:
        """All trained weights that enter, by channel: [W b]."""
        if self.bias is None:
            return self.weight
        return jnp.concatenate([self.weight, self.bias[:, None]], axis=1)

    @property
    def positions(self) -> int:
        """The number of positions."""
        return self.units // self.channels

    @property
    def is_trained(self) -> bool:
        """Whether any weights that enter are; a sum of layers has none."""
        return any(connection.trained for connection in self.connections)

    @property
    def is_plain(self) -> bool:
        """Whether z is what the connections bring and nothing else."""
        return self.bias is None and self.norm is None

    def __call__(self, values: Sequence[Units]) -> Units:
        """z, from the values of all layers so far."""
        z = self.entering(values)
        return z if self.norm is None else self.norm(z)

    def entering(self, values: Sequence[Units]) -> Units:
        """z before it is normalised."""
        z = self._sum(lambda connection, a: connection(a), values)
        return z if self.bias is None else z + jnp.tile(self.bias, self.positions)[None, :]

    def own_squares(self, values: Sequence[Units]) -> Units:
        """‖∂z/∂(weights that enter)‖², from the values of all layers so far."""
        own = self._sum(own_squares, values)
        return own if self.bias is None else own + 1

    def passed_squares(self, squares: Sequence[Units]) -> Units:
        """Σ w² q over what enters, from the q of all layers so far."""
        return self._sum(passed_squares, squares)

    def _sum(
        self,
        image: Callable[[AbstractConnection, Units], Units],
        values: Sequence[Units],
    ) -> Units:
        parts = zip(self.connections, self.sources, strict=True)
        first, *rest = [image(connection, values[source]) for connection, source in parts]
        return sum(rest, first)


class LayeredNet(AbstractNet):
    r"""Layers along a feed-forward graph, each fed by linear maps from earlier ones.

    Fully connected and convolutional networks, residual ones, those that concatenate:
    `gf.nets.sequential` builds them from blocks. Constants (identity skips) have no array
    leaves: all that there are are trained.

    Homogeneous, of degree L, if all paths meet L trained weights; otherwise (biases above
    the first layer, skips, batch normalisation) of no degree.

    With batch normalisation the outputs of a sample depend on the others. Then no sample
    has kinks of its own, and what follows them, such as `gf.solvers.ExactKinks`, refuses
    the net; `gf.nets.normalised_by` fixes the statistics.
    """

    in_shape: tuple[int, ...] = eqx.field(static=True)
    layers: tuple[Layer, ...]

    def __init__(self, in_shape: Sequence[int], layers: Sequence[Layer]):
        """Join the layers, the last one the output.

        Args:
            in_shape: positions (if any), then channels, of the input; a row of x is that,
                flattened.
            layers: in an order in which each comes after its sources.

        Raises:
            ValueError: if there is none; if connections do not fit; if a layer comes from
                a later one, leads nowhere, or has no trained weights but an activation.
        """
        self.in_shape = tuple(in_shape)
        self.layers = tuple(layers)
        _check(self.in_shape, self.layers)

    @property
    def activations(self) -> tuple[PiecewiseLinear, ...]:
        """The activation of each hidden layer."""
        return tuple(layer.activation for layer in self.layers[:-1])

    @property
    def weights(self) -> tuple[Float[Array, "_ _"], ...]:
        """[U Z …] of each layer that has any: all trained weights that enter but biases,
        by channel."""
        return tuple(layer.weight for layer in self.layers if layer.is_trained)

    @property
    def knows_kinks(self) -> bool:
        """Yes."""
        return True

    @property
    def degree(self) -> int | None:
        """The number of trained weights on every path, None if it is not the same."""
        degrees: list[int] = [0]
        for layer in self.layers:
            parts = zip(layer.connections, layer.sources, strict=True)
            found = {degrees[source] + c.trained for c, source in parts}
            found |= set() if layer.bias is None else {1}
            if len(found) > 1 or layer.norm is not None:
                return None
            degrees += found
        return degrees[-1]

    @property
    def is_normalised(self) -> bool:
        """Whether any layer has batch normalisation, so that samples see each other."""
        return any(layer.norm is not None for layer in self.layers)

    @property
    def in_size(self) -> int:
        """The number of input features."""
        return math.prod(self.in_shape)

    @property
    def out_size(self) -> int:
        """The number of outputs."""
        return self.layers[-1].units

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """W_l, or W_l_s where several lead to layer l, from layer s; the bias b_l; gain_l
        and shift_l of its normalisation."""
        names = []
        for i, layer in enumerate(self.layers, start=1):
            trained = [
                source
                for connection, source in zip(layer.connections, layer.sources, strict=True)
                if connection.trained
            ]
            several = len(trained) > 1
            names += [f"W{i}_{source}" if several else f"W{i}" for source in trained]
            names += [] if layer.bias is None else [f"b{i}"]
            if layer.norm is not None:
                names += [] if layer.norm.gain is None else [f"gain{i}"]
                names += [] if layer.norm.shift is None else [f"shift{i}"]
        return tuple(names)

    def forward(
        self, x: Float[Array, "samples in"], gates: Sequence[Gate]
    ) -> tuple[Float[Array, "samples out"], tuple[Float[Array, "samples _"], ...]]:
        """Outputs and pre-activations, layer by layer."""
        values, preactivations = [x], []
        for layer, gate in zip(self.layers[:-1], gates, strict=True):
            preactivations.append(layer(values))
            values.append(gate(preactivations[-1]))
        return self.layers[-1](values), tuple(preactivations)

    def gradient_norms(
        self,
        x: Float[Array, "samples in"],
        values: tuple[Float[Array, "samples _"], ...],
    ) -> tuple[Float[Array, "samples _"], ...]:
        r"""About ‖∂z/∂θ‖ of each pre-activation, (N, n_l), as if the gradients of
        different units were orthogonal:

        $$q_l = \sum_{\text{trained}} a_{l-1}^2 + \sum_j w_j^2 \, \text{gate}_j^2 \, q_j$$

        Raises:
            ValueError: with batch normalisation.
        """
        if self.is_normalised:
            raise ValueError(
                "net has batch normalisation, with which no sample has kinks of its own; "
                "use gf.descend or gf.solvers.Adaptive(), or fix the statistics: "
                "gf.nets.normalised_by(net, x)."
            )
        entering, squares, norms = [x], [jnp.zeros_like(x)], []
        for layer, value in zip(self.layers[:-1], values, strict=True):
            q = layer.own_squares(entering) + layer.passed_squares(squares)
            norms.append(jnp.sqrt(q))
            entering.append(value * layer(entering))
            squares.append(value**2 * q)
        return tuple(norms)

    def conserved(self) -> tuple[Invariant, ...]:
        """What gradient flow conserves (Le & Jegelka, section 4, as corrected).

        Of a hidden layer all of whose connections in and out are trained: the full matrix
        if it is linear, the diagonal and blocks if it is not; the diagonal alone where some
        connection does not mix channels. Where a layer has none because of a skip: the
        difference of the norms of the last cut before it and the first behind it that
        consist of trained weights. A cut is between the first k layers and the rest; every
        path meets it once. Nothing of a layer with batch normalisation, no cuts with any.
        """
        found = {i: self._of_layer(i) for i in range(1, len(self.layers))}
        norms = [
            Invariant(f"cuts {before}, {after}", "norms", first[None, :], last[:, None], 0)
            for (before, first), (after, last) in itertools.pairwise(self._cuts())
            if any(found[i] is None for i in range(before + 1, after + 1))
        ]
        return (*[m for m in found.values() if m is not None], *norms)

    def _of_layer(self, number: int) -> Invariant | None:
        """The invariant of a hidden layer, counted from 1, if it has one."""
        layer = self.layers[number - 1]
        if layer.norm is not None:
            return None
        out = [
            connection
            for later in self.layers[number:]
            for connection, source in zip(later.connections, later.sources, strict=True)
            if source == number
        ]
        around = (*layer.connections, *out)
        if not all(connection.trained for connection in around):
            return None
        outgoing = concatenated([c.outgoing(layer.channels) for c in out], axis=0)
        form = "full" if layer.activation.is_linear else "blocks"
        form = form if all(connection.mixes for connection in around) else "diagonal"
        return Invariant(f"layer {number}", form, layer.incoming, outgoing, number)

    def _cuts(self) -> list[tuple[int, Float[Array, " weights"]]]:
        """(k, its weights) of each cut behind k layers that consists of trained ones."""
        if self.is_normalised:
            return []
        cuts = []
        for k in range(len(self.layers)):
            later = self.layers[k:]
            across = [
                connection
                for layer in later
                for connection, source in zip(layer.connections, layer.sources, strict=True)
                if source <= k
            ]
            if all(connection.trained for connection in across):
                biases = [layer.bias for layer in later]
                leaves = jax.tree.leaves((across, biases))
                cuts.append((k, jnp.concatenate([jnp.ravel(w) for w in leaves])))
        return cuts


def _check(in_shape: tuple[int, ...], layers: tuple[Layer, ...]) -> None:
    if not layers:
        raise ValueError("layers is empty; give at least the output layer.")
    units = [math.prod(in_shape)]
    for i, layer in enumerate(layers, start=1):
        if not layer.sources or not all(0 <= source < i for source in layer.sources):
            raise ValueError(
                f"layer {i} has sources={layer.sources}; they must be layers before it, "
                "0 for the input."
            )
        if not (layer.is_trained or layer.activation.is_linear):
            raise ValueError(
                f"layer {i} has no trained weights but activation="
                f"{layer.activation.name!r}; a sum is linear, join it with the next."
            )
        if layer.norm is not None and layer.norm.channels != layer.channels:
            raise ValueError(
                f"layer {i} has {layer.channels} channels, but its norm has "
                f"{layer.norm.channels}."
            )
        if layer.bias is not None and layer.bias.shape != (layer.channels,):
            raise ValueError(
                f"layer {i} has a bias of shape {layer.bias.shape}; it has one for each of "
                f"its {layer.channels} channels."
            )
        for connection, source in zip(layer.connections, layer.sources, strict=True):
            reached = connection.out_units(units[source])
            if reached != layer.units:
                raise ValueError(
                    f"layer {i} has {layer.units} units, but the connection from "
                    f"{source} leads to {reached}."
                )
        units.append(layer.units)
    fed = {source for layer in layers for source in layer.sources}
    if idle := set(range(1, len(layers))) - fed:
        raise ValueError(f"layer {min(idle)} leads nowhere; only the last one may.")
