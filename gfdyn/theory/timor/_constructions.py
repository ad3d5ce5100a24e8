"""Networks of zero loss: of rank one (Theorem 1), and on given first-layer weights."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._tracing import is_concrete
from ...nets import MLP, norm
from ...problem import Problem
from .._check import Check, equal
from ._setting import check_points


def rank_one_net(problem: Problem) -> MLP:
    r"""A net of zero loss on two points whose W has rank one:

    $$W = \begin{pmatrix} w \\ -w \end{pmatrix}, \quad
    w = \frac{x_1}{|x_1|} - \frac{x_2}{|x_2|}, \quad
    V = \Big(\frac{y_1}{d_1}\ \frac{y_2}{d_2}\Big), \quad d_j = |x_j|\,(1-\cos\phi).$$

    Timor et al., Theorem 1: $\mathrm{relu}(WX) = \mathrm{diag}(d_1, d_2)$. The paper has V
    through a pseudo-inverse, and leaves out that the inputs must not vanish.

    Raises:
        ValueError: unless the data are two points and two targets in the plane; if the
            points lie on one ray, or one of them at 0.
    """
    check_points(problem)
    x, y = problem.data.x, problem.data.y
    lengths = jnp.linalg.norm(x, axis=1)
    units = x / lengths[:, None]
    w = units[0] - units[1]
    # 1 − cos φ = |w|²/2, without cancellation.
    d = lengths * jnp.sum(w**2) / 2
    if is_concrete(d) and not np.all(np.asarray(d) > 0):
        raise ValueError(
            f"the inputs {np.asarray(x).tolist()} lie on one ray, or one of them at 0: no "
            "net of rank one tells them apart."
        )
    return MLP.from_weights([jnp.stack([w, -w]), (y / d[:, None]).T])


def interpolating_net(problem: Problem, first: Float[Array, "width dim"]) -> MLP:
    r"""The net of zero loss with the given W: $V = Y\,\mathrm{relu}(WX)^+$.

    Timor et al., Lemma 2, for N points in any dimension. For every point some neuron must
    see it alone; then relu(WX) has rank N.

    Args:
        first: W, a row for each hidden neuron.

    Raises:
        ValueError: if W does not fit the inputs, or a point has no neuron of its own.
    """
    x, y = problem.data.x, problem.data.y
    if first.shape[1] != x.shape[1]:
        raise ValueError(
            f"first has shape {first.shape}, must have {x.shape[1]} columns: one for each "
            "coordinate of the inputs."
        )
    z = first @ x.T
    if is_concrete(z):
        on = np.asarray(z) > 0
        alone = on & (np.sum(on, axis=1, keepdims=True) == 1)
        missing = np.flatnonzero(~np.any(alone, axis=0))
        if len(missing):
            raise ValueError(
                f"no row of first sees sample {missing[0]} alone; Lemma 2 asks for one, "
                "w·x > 0 there and w·x <= 0 at all other samples."
            )
    hidden = jnp.maximum(z, 0)
    return MLP.from_weights([first, y.T @ jnp.linalg.pinv(hidden)])


def rank_one_net_fits(problem: Problem) -> Check:
    r"""$V\,\mathrm{relu}(WX) = Y$ and $\sigma_2(W) = 0$ for the `rank_one_net`.

    Timor et al., Theorem 1. Two entries: ‖V relu(WX) − Y‖_F over ‖Y‖_F, and σ_2/σ_1 of W;
    equal to 0 up to rounding, which is 1/(1 − cos φ) times that of the inputs.

    Raises:
        ValueError: see `rank_one_net`.
    """
    net = rank_one_net(problem)
    w = net.weights[0]
    singular = jnp.linalg.svd(w, compute_uv=False)
    residual = norm(problem.outputs(net) - problem.data.y) / norm(problem.data.y)
    lhs = jnp.stack([residual, singular[1] / singular[0]])
    rounding = 100 * float(jnp.finfo(lhs.dtype).eps)
    return equal(
        lhs,
        jnp.zeros_like(lhs),
        assumptions={},
        slack=rounding * (1 + 4 / jnp.sum(w[0] ** 2)),
    )
