r"""The neural tangent kernel $\Theta = J J^\top$, J the derivative of all outputs by θ.

Θ v takes one pass back and one forward, so that J is never stored.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from .._types import Outputs
from ..nets import AbstractNet
from ..problem import Problem


Kernel = Float[Array, "samples outputs samples outputs"]


def ntk(problem: Problem, net: AbstractNet) -> Kernel:
    r"""$\Theta_{ia,jb} = \langle \partial f_a(x_i)/\partial\theta,
    \partial f_b(x_j)/\partial\theta\rangle$, (N, k, N, k), under the gates at hand.

    Outputs move by dF/dt = −Θ ∇C(F) along gradient flow (Jacot et al., 2018).

    Example:
        >>> import jax.numpy as jnp, gfdyn as gf
        >>> problem = gf.Problem(gf.Dataset(jnp.eye(2), jnp.ones(2)), gf.losses.squared)
        >>> net = gf.nets.MLP.from_weights([jnp.ones((1, 2))])
        >>> ntk(problem, net)[:, 0, :, 0].tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    product = _product(problem, net)
    units = _unit_outputs(problem)
    rows = jax.lax.map(product, units)
    return rows.reshape(*problem.data.y.shape, *problem.data.y.shape)


def ntk_change(
    problem: Problem, net: AbstractNet, start: AbstractNet, probes: int | None = None
) -> Float[Array, ""]:
    r"""$\|\Theta - \Theta_0\|_F / \|\Theta_0\|_F$: near 0 in the lazy regime, of order one
    in the rich one (Chizat et al., 2019).

    Args:
        start: the net of Θ₀, such as the one that training began with.
        probes: how many random vectors, 1 or more, to estimate both squared norms from, the
            same for each net; without bias, within about √(2/probes). None for the exact
            value, from N k products.

    Raises:
        ValueError: on less than one probe.
    """
    if probes is None:
        vectors = _unit_outputs(problem)
    elif probes < 1:
        raise ValueError(f"probes={probes} must be 1 or more, or None for the exact value.")
    else:
        y = problem.data.y
        vectors = jr.rademacher(jr.key(0), (probes, *y.shape), y.dtype)
    before, after = _product(problem, start), _product(problem, net)

    def squares(vector: Outputs) -> tuple[Array, Array]:
        first = before(vector)
        return jnp.sum((after(vector) - first) ** 2), jnp.sum(first**2)

    changes, sizes = jax.lax.map(squares, vectors)
    return jnp.sqrt(jnp.sum(changes) / jnp.sum(sizes))


def ntk_alignment(problem: Problem, net: AbstractNet) -> Float[Array, ""]:
    r"""$y^\top\Theta y / (\|y\|^2 \|\Theta\|_F)$, how far the kernel points to the targets:
    1 for $\Theta \propto yy^\top$, as features that were learnt tend to (Cortes et al.,
    2012; Baratin et al., 2021). Exact, from N k products.
    """
    product, y = _product(problem, net), problem.data.y
    squares = jax.lax.map(
        lambda vector: jnp.sum(product(vector) ** 2), _unit_outputs(problem)
    )
    return jnp.sum(y * product(y)) / (jnp.sum(y**2) * jnp.sqrt(jnp.sum(squares)))


def _product(problem: Problem, net: AbstractNet) -> Callable[[Outputs], Outputs]:
    """v ↦ Θ v."""
    _, push = jax.linearize(problem.outputs, net)
    _, pull = jax.vjp(problem.outputs, net)
    return lambda vector: push(*pull(vector))


def _unit_outputs(problem: Problem) -> Float[Array, "entries samples outputs"]:
    """Each entry of the outputs as a vector of its own."""
    y = problem.data.y
    return jnp.eye(y.size, dtype=y.dtype).reshape(y.size, *y.shape)
