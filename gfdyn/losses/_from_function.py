"""A loss of one's own, from the cost of one sample."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Shaped

from .._tracing import is_concrete
from .._types import Outputs
from ._standard import AbstractLoss, PerSample, columns


Cost = Callable[[Float[Array, " k"], Float[Array, " k"]], Float[Array, ""]]

# Where a cost is searched for kinks: on so many lines, at so many points of each, so far
# from the target; an interval in which its gradient jumps is halved so often.
_LINES, _POINTS, _REACH, _HALVINGS = 16, 257, 4.0, 30
# A gradient that still jumps by this part of its largest value has a kink there.
_JUMP = 1e-3


class FromFunction(AbstractLoss):
    """The loss of `from_function`."""

    cost: Cost = eqx.field(static=True)
    name: str = eqx.field(static=True)
    log_cost: Cost | None = eqx.field(static=True)

    def targets(self, y: Shaped[Array, " samples *k"]) -> Shaped[Array, "samples k"]:
        """The targets as they are, (N, k), once the cost was seen to be smooth at them.

        Raises:
            TypeError: if the cost of a sample is no number.
            ValueError: if the cost has a kink, or is not finite.
        """
        y = columns(y)
        floats = jnp.issubdtype(y.dtype, jnp.floating)
        sample = jax.ShapeDtypeStruct(y.shape[1:], y.dtype if floats else float)
        found = eqx.filter_eval_shape(self.cost, sample, sample)
        if getattr(found, "shape", None) != ():
            raise TypeError(
                f"the cost of {self.name} must be one number for outputs and targets of "
                f"shape {sample.shape}, not {found}; sum over outputs."
            )
        if is_concrete(y):
            _check_smooth(self.cost, self.name, np.asarray(y))
        return y

    def values(self, outputs: Outputs, targets: Outputs) -> PerSample:
        """The cost of each sample."""
        return jax.vmap(self.cost)(outputs, targets)

    def log_values(self, outputs: Outputs, targets: Outputs) -> PerSample:
        """log of the cost of each sample, if it was given.

        Raises:
            ValueError: if it was not.
        """
        if self.log_cost is None:
            raise ValueError(
                f"the loss {self.name} has no logarithm: give log_cost= to "
                "gf.losses.from_function, or use clock='physical'."
            )
        return jax.vmap(self.log_cost)(outputs, targets)

    def margins(self, outputs: Outputs, targets: Outputs) -> PerSample:
        """Raises: none is known."""
        raise ValueError(
            f"the loss {self.name} has no margin; use logistic, exponential or "
            "cross_entropy."
        )


def from_function(
    cost: Cost, *, name: str | None = None, log_cost: Cost | None = None
) -> FromFunction:
    r"""The loss $\ell(f, y)$ that a function computes for one sample.

    Its gradient, at zero output for `EscapeFlow` as well, is taken by JAX. It is refused
    where it is found to jump: the flow of a loss with kinks, such as the hinge, slides
    along these, which is not followed. The Huber loss, with a continuous gradient, is fine.

    Args:
        cost: `cost(outputs, targets)`, both (k,), to one number; jittable. The same
            function each time, for another one compiles anew.
        name: in messages; that of the function if None.
        log_cost: log of it, computed so that it is right where the cost underflows; for
            `clock="loss"` and `"arc"`.

    Raises:
        TypeError: if the cost, or its log, is not callable.

    Example:
        >>> import jax.numpy as jnp
        >>> def log_cosh(outputs, targets):
        ...     return jnp.sum(jnp.log(jnp.cosh(outputs - targets)))
        >>> loss = from_function(log_cosh)
        >>> float(loss.values(jnp.zeros((1, 2)), jnp.zeros((1, 2)))[0])
        0.0
        >>> def soft_margin(outputs, labels):       # labels ±1, a margin of 1
        ...     return jnp.sum(jnp.logaddexp(0.0, 1.0 - labels * outputs))
        >>> from_function(soft_margin).name
        'soft_margin'
        >>> def hinge(outputs, labels):
        ...     return jnp.sum(jnp.maximum(1.0 - labels * outputs, 0.0))
        >>> loss = from_function(hinge)
        >>> loss.targets(jnp.ones((1, 1)))          # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: the loss hinge has a kink near ...
    """
    for label, function in (("cost", cost), ("log_cost", log_cost)):
        if function is not None and not callable(function):
            raise TypeError(
                f"{label} must be a function of outputs and targets, got {function!r}."
            )
    return FromFunction(cost, name or getattr(cost, "__name__", "cost"), log_cost)


def _check_smooth(cost: Cost, name: str, y: np.ndarray) -> None:
    """Raise where the gradient jumps on some lines, through targets and through 0."""
    targets = jnp.asarray(y[np.linspace(0, len(y) - 1, _LINES).astype(int)])
    if not jnp.issubdtype(targets.dtype, jnp.floating):
        targets = targets.astype(float)
    ways = jr.normal(jr.key(0), targets.shape, targets.dtype)
    ways = ways / jnp.linalg.norm(ways, axis=1, keepdims=True)
    ways = (1 + jnp.max(jnp.abs(targets))) * ways
    starts = jnp.where(jnp.arange(_LINES)[:, None] % 2 == 0, targets, 0.0)

    def outputs(line: Array, s: Array) -> Array:
        return starts[line] + s[..., None] * ways[line]

    @jax.jit
    def gradient(line: Array, s: Array) -> Array:
        return jax.vmap(jax.grad(cost))(outputs(line, s), targets[line])

    def at(line: Array, s: Array) -> str:
        found = np.round(np.asarray(outputs(line, s)), 6).tolist()
        return f"outputs {found} for targets {np.asarray(targets[line]).tolist()}"

    line = jnp.repeat(jnp.arange(_LINES), _POINTS - 1)
    points = jnp.linspace(-_REACH, _REACH, _POINTS, dtype=ways.dtype)
    low, high = (jnp.tile(part, _LINES) for part in (points[:-1], points[1:]))
    before, after = gradient(line, low), gradient(line, high)
    largest = jnp.max(jnp.abs(before))
    if not jnp.isfinite(largest):
        i = int(jnp.argmax(~jnp.isfinite(before).all(axis=1)))
        raise ValueError(
            f"the gradient of the loss {name} is not finite at {at(line[i], low[i])}."
        )

    def jump(a: Array, b: Array) -> Array:
        return jnp.max(jnp.abs(b - a), axis=1)

    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        between = gradient(line, middle)
        left = jump(before, between) > jump(between, after)
        low, high = jnp.where(left, low, middle), jnp.where(left, middle, high)
        before = jnp.where(left[:, None], before, between)
        after = jnp.where(left[:, None], between, after)
    jumps = jump(before, after)
    i = int(jnp.argmax(jumps))
    if jumps[i] > _JUMP * largest:
        raise ValueError(
            f"the loss {name} has a kink near {at(line[i], low[i])}: its gradient flow may "
            "slide along that, which is not followed. Smooth it, such as max(0, u) to "
            "softplus(β u)/β."
        )
