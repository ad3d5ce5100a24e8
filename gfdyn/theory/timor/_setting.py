"""Two points of the plane, their targets, and a network of two hidden neurons (Sec. 3)."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..._numerics import ROUNDING
from ..._tracing import is_concrete
from ..._types import Scalar
from ...losses import Squared
from ...nets import MLP, PiecewiseLinear, check_mlp
from ...problem import Problem, check_fit


Pair = Float[Array, "2 2"]

_RELU = PiecewiseLinear(0.0)


class TwoNeurons(eqx.Module):
    r"""The data and the net $x \mapsto V\,\mathrm{relu}(W x)$ in the paper's names, each
    vector a row: $x_j$, $y_j$, $w_i$ (row of W) and $v_i$ (column of V).
    """

    x: Pair
    y: Pair
    w: Pair
    v: Pair

    @property
    def z(self) -> Pair:
        r"""$w_i \cdot x_j$, (neuron, point)."""
        return self.w @ self.x.T

    @property
    def residual(self) -> Pair:
        r"""$N(x_j) - y_j$, (point, output)."""
        return jnp.maximum(self.z, 0).T @ self.v - self.y

    @property
    def loss(self) -> Scalar:
        r"""$L = \tfrac12\sum_j |N(x_j) - y_j|^2$, whatever the problem's reduction."""
        return jnp.sum(self.residual**2) / 2

    @property
    def w_norm(self) -> Float[Array, "2"]:
        """|w_i|."""
        return jnp.linalg.norm(self.w, axis=1)

    @property
    def v_norm(self) -> Float[Array, "2"]:
        """|v_i|."""
        return jnp.linalg.norm(self.v, axis=1)

    @property
    def imbalance(self) -> Float[Array, "2"]:
        r"""$\epsilon_i = |w_i|^2 - |v_i|^2$, which the flow conserves."""
        return self.w_norm**2 - self.v_norm**2

    @property
    def own_point(self) -> tuple[Bool[Array, "2"], Bool[Array, "2"]]:
        """Whether neuron i sees one point alone (w_i in S_1 or S_2), and whether that is
        the second."""
        on = self.z > 0
        return on[:, 0] != on[:, 1], on[:, 1]

    @property
    def is_matched(self) -> Bool[Array, ""]:
        """Whether each neuron sees a point of its own, in either order."""
        alone, second = self.own_point
        return jnp.all(alone) & (second[0] != second[1])

    @property
    def neurons_by_point(self) -> "TwoNeurons":
        """The same net, its neurons swapped if the first one sees the second point.

        "Without loss of generality" in the paper: if matched, then w_i is in S_i.
        """
        swap = self.own_point[1][0]
        w, v = (jnp.where(swap, a[::-1], a) for a in (self.w, self.v))
        return TwoNeurons(self.x, self.y, w, v)


def two_neurons(problem: Problem, net: MLP) -> TwoNeurons:
    """A problem and a net as the setting of Section 3.

    Raises:
        TypeError: if the net is no MLP.
        ValueError: unless there are two points of the plane with two targets in the plane,
            the loss is squared, and the net has two hidden ReLU neurons.
    """
    check_points(problem)
    check_mlp(net)
    check_fit(problem, net)
    widths = (net.in_size, *(w.shape[0] for w in net.weights))
    if widths != (2, 2, 2) or net.activations != (_RELU,):
        raise ValueError(
            f"net has widths {widths}; Section 3 of Timor et al. is about two hidden ReLU "
            "neurons: gf.nets.MLP.from_weights([W, V]) with W and V of shape (2, 2)."
        )
    w, v = net.weights
    return TwoNeurons(problem.data.x, problem.data.y, w, v.T)


def check_points(problem: Problem) -> None:
    """Raise unless the data are two points and two targets, and the loss is squared.

    Raises:
        ValueError: otherwise.
    """
    shapes = (problem.data.x.shape, problem.data.y.shape)
    if shapes != ((2, 2), (2, 2)) or not isinstance(problem.loss, Squared):
        raise ValueError(
            f"problem has inputs {shapes[0]}, targets {shapes[1]} and the loss "
            f"{problem.loss!r}; Section 3 of Timor et al. has two points and two targets "
            "in the plane, as gf.data.two_points makes, and gf.losses.squared."
        )


def angle_between(a: Float[Array, "2"], b: Float[Array, "2"]) -> Scalar:
    """The angle of two vectors of the plane in [0, π], to full precision at both ends."""
    return jnp.arctan2(jnp.abs(_cross(a, b)), jnp.dot(a, b))


def inputs_angle(problem: Problem) -> Scalar:
    """φ, the angle of x_1 and x_2.

    Raises:
        ValueError: unless the data are two points and two targets in the plane.
    """
    check_points(problem)
    return angle_between(problem.data.x[0], problem.data.x[1])


def targets_angle(problem: Problem) -> Scalar:
    """ψ, the angle of y_1 and y_2.

    Raises:
        ValueError: unless the data are two points and two targets in the plane.
    """
    check_points(problem)
    return angle_between(problem.data.y[0], problem.data.y[1])


def data_assumptions(problem: Problem) -> dict[str, Bool[Array, ""]]:
    """The assumptions of Section 3 on the data, up to rounding.

    A1: y_1 and y_2 are unit vectors, linearly independent. A2: x_1 and x_2 are unit
    vectors at an angle φ in (π/2, π).

    Raises:
        ValueError: unless the data are two points and two targets in the plane.
    """
    check_points(problem)
    (x1, x2), (y1, y2) = problem.data.x, problem.data.y
    rounding = ROUNDING * float(jnp.finfo(problem.data.x.dtype).eps)

    def unit(vectors: Pair) -> Array:
        return jnp.all(jnp.abs(jnp.linalg.norm(vectors, axis=1) - 1) <= rounding)

    def independent(a: Array, b: Array) -> Array:
        return jnp.abs(_cross(a, b)) > rounding

    obtuse = (jnp.dot(x1, x2) < 0) & independent(x1, x2)
    return {
        "A1": unit(problem.data.y) & independent(y1, y2),
        "A2": unit(problem.data.x) & obtuse,
    }


def check_obtuse(phi: object) -> None:
    """Raise if a known angle is not in (π/2, π).

    Raises:
        ValueError: then.
    """
    if is_concrete(phi):
        angles = np.asarray(phi)
        if not np.all((angles > np.pi / 2) & (angles < np.pi)):
            raise ValueError(
                f"phi={phi} must lie in (pi/2, pi), assumption A2: give it in radians."
            )


def _cross(a: Float[Array, "2"], b: Float[Array, "2"]) -> Scalar:
    return a[0] * b[1] - a[1] * b[0]
