r"""Losses $\ell(f, y)$ of one sample, in plain and in log domain.

`values` is $\ell$; `log_values` is $\log\ell$, exact for margins far beyond where $\ell$
itself underflows. Labels are never folded into inputs: for ReLU, $\nu(yx) \ne y\,\nu(x)$.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from .._tracing import is_concrete
from .._types import Outputs
from ..data import one_hot


PerSample = Float[Array, " samples"]


class AbstractLoss(eqx.Module):
    """A differentiable loss of one sample, ℓ(f(x), y) with f(x), y in R^k."""

    @abc.abstractmethod
    def targets(self, y: Shaped[Array, " samples *k"]) -> Shaped[Array, "samples k"]:
        """The targets as this loss reads them, checked; (N, k)."""

    @abc.abstractmethod
    def values(self, outputs: Outputs, targets: Outputs) -> PerSample:
        """ℓ of each sample, (N,)."""

    @abc.abstractmethod
    def log_values(self, outputs: Outputs, targets: Outputs) -> PerSample:
        """log ℓ of each sample, (N,)."""

    @abc.abstractmethod
    def margins(self, outputs: Outputs, targets: Outputs) -> PerSample:
        """The margin of each sample, (N,): positive where it is classified correctly."""


class Squared(AbstractLoss):
    r"""$\ell = \tfrac12 \|f - y\|^2$, summed over outputs."""

    def targets(self, y: Shaped[Array, " samples *k"]) -> Shaped[Array, "samples k"]:
        """Real targets, (N, k)."""
        return columns(y)

    def values(self, outputs: Outputs, targets: Outputs) -> PerSample:
        """½‖f − y‖²."""
        return 0.5 * jnp.sum((outputs - targets) ** 2, axis=-1)

    def log_values(self, outputs: Outputs, targets: Outputs) -> PerSample:
        """log ½‖f − y‖², −∞ (with gradient 0) where a sample is fitted exactly."""
        residuals = outputs - targets
        largest = jax.lax.stop_gradient(jnp.max(jnp.abs(residuals), axis=-1))
        fitted = largest == 0
        unit = jnp.where(fitted, 1.0, largest)
        values = 0.5 * jnp.sum((residuals / unit[:, None]) ** 2, axis=-1)
        values = jnp.where(fitted, 1.0, values)
        return jnp.where(fitted, -jnp.inf, jnp.log(values) + 2 * jnp.log(unit))

    def margins(self, outputs: Outputs, targets: Outputs) -> PerSample:
        """Raises: a regression has no margin."""
        raise _no_margin("squared")


class Linear(AbstractLoss):
    r"""$\ell = -\langle y, f\rangle$: gradient flow on it is the localized flow in time t.

    Its cost gradient is −y/N everywhere. Not bounded below, so that for L > 2 weight
    matrices the flow blows up in finite time (Bantzis et al., Prop. 2.2).
    """

    def targets(self, y: Shaped[Array, " samples *k"]) -> Shaped[Array, "samples k"]:
        """Real directions, (N, k)."""
        return columns(y)

    def values(self, outputs: Outputs, targets: Outputs) -> PerSample:
        """−⟨y, f⟩."""
        return -jnp.sum(outputs * targets, axis=-1)

    def log_values(self, outputs: Outputs, targets: Outputs) -> PerSample:
        """Raises: the loss takes negative values."""
        raise ValueError(
            "the linear loss has no logarithm, it takes negative values: use "
            "clock='physical', or an EscapeFlow with localized=True."
        )

    def margins(self, outputs: Outputs, targets: Outputs) -> PerSample:
        """Raises: a regression has no margin."""
        raise _no_margin("linear")


class Exponential(AbstractLoss):
    r"""$\ell = \sum_a e^{-y_a f_a}$, labels $y_a = \pm 1$."""

    def targets(self, y: Shaped[Array, " samples *k"]) -> Shaped[Array, "samples k"]:
        """Signs ±1, (N, k)."""
        return _signs(y)

    def values(self, outputs: Outputs, targets: Outputs) -> PerSample:
        """Σ_a exp(−y_a f_a)."""
        return jnp.sum(jnp.exp(-targets * outputs), axis=-1)

    def log_values(self, outputs: Outputs, targets: Outputs) -> PerSample:
        """log Σ_a exp(−y_a f_a)."""
        return jax.nn.logsumexp(-targets * outputs, axis=-1)

    def margins(self, outputs: Outputs, targets: Outputs) -> PerSample:
        """min_a y_a f_a."""
        return jnp.min(targets * outputs, axis=-1)


class Logistic(AbstractLoss):
    r"""$\ell = \sum_a \log(1 + e^{-y_a f_a})$, labels $y_a = \pm 1$."""

    def targets(self, y: Shaped[Array, " samples *k"]) -> Shaped[Array, "samples k"]:
        """Signs ±1, (N, k)."""
        return _signs(y)

    def values(self, outputs: Outputs, targets: Outputs) -> PerSample:
        """Σ_a log(1 + exp(−y_a f_a))."""
        return jnp.sum(jax.nn.softplus(-targets * outputs), axis=-1)

    def log_values(self, outputs: Outputs, targets: Outputs) -> PerSample:
        """log Σ_a log(1 + exp(−y_a f_a))."""
        return jax.nn.logsumexp(log_softplus(-targets * outputs), axis=-1)

    def margins(self, outputs: Outputs, targets: Outputs) -> PerSample:
        """min_a y_a f_a."""
        return jnp.min(targets * outputs, axis=-1)


class CrossEntropy(AbstractLoss):
    r"""$\ell = \log \sum_a e^{f_a - f_c}$ for the class $c$ of the sample.

    Targets are one-hot rows, or integer class labels 0, …, k−1.
    """

    def targets(self, y: Shaped[Array, " samples *k"]) -> Shaped[Array, "samples k"]:
        """One-hot rows, (N, k); integer labels are expanded."""
        if jnp.issubdtype(y.dtype, jnp.integer):
            return one_hot(y)
        y = columns(y)
        if is_concrete(y):
            wrong = ~(((y == 0) | (y == 1)).all(axis=1) & (y.sum(axis=1) == 1))
            if wrong.any():
                i = int(jnp.argmax(wrong))
                raise ValueError(
                    f"y holds no one-hot row at sample {i}: {y[i]}; cross_entropy needs "
                    "one-hot rows or integer class labels."
                )
        return y

    def values(self, outputs: Outputs, targets: Outputs) -> PerSample:
        """log(1 + exp(−margin))."""
        return jax.nn.softplus(-self.soft_margins(outputs, targets))

    def log_values(self, outputs: Outputs, targets: Outputs) -> PerSample:
        """log log(1 + exp(−margin))."""
        return log_softplus(-self.soft_margins(outputs, targets))

    def soft_margins(self, outputs: Outputs, targets: Outputs) -> PerSample:
        r"""$f_c - \log\sum_{a \ne c} e^{f_a}$, of which the loss is the logistic loss."""
        others = jax.nn.logsumexp(outputs, axis=-1, where=targets == 0)
        return _of_class(outputs, targets) - others

    def margins(self, outputs: Outputs, targets: Outputs) -> PerSample:
        """f_c − max of the other outputs."""
        others = jnp.max(outputs, axis=-1, where=targets == 0, initial=-jnp.inf)
        return _of_class(outputs, targets) - others


squared = Squared()
r"""The loss $\tfrac12 \|f - y\|^2$, summed over outputs: see `Squared`."""

linear = Linear()
r"""The loss $-\langle y, f\rangle$, whose flow is the localized one: see `Linear`."""

exponential = Exponential()
r"""The loss $\sum_a e^{-y_a f_a}$, labels $y_a = \pm 1$: see `Exponential`."""

logistic = Logistic()
r"""The loss $\sum_a \log(1 + e^{-y_a f_a})$, labels $y_a = \pm 1$: see `Logistic`."""

cross_entropy = CrossEntropy()
r"""The loss $\log \sum_a e^{f_a - f_c}$ of class $c$: see `CrossEntropy`."""


def log_softplus(u: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """log log(1 + eᵘ), exact (value and derivative) where eᵘ underflows.

    Below −30 it is u − eᵘ/2, the next term e²ᵘ is below float64's resolution.
    """
    far = u < -30
    near = jnp.where(far, 0.0, u)
    below = jnp.where(far, u, -30.0)
    return jnp.where(far, below - 0.5 * jnp.exp(below), jnp.log(jax.nn.softplus(near)))


def _of_class(outputs: Outputs, targets: Outputs) -> PerSample:
    """f_c of each sample. Selected, not Σ_a y_a f_a: that product, fused with a masked
    maximum, is wrong in float32 under vmap on CPU (XLA of jax 0.10)."""
    return jnp.sum(jnp.where(targets == 0, 0.0, outputs), axis=-1)


def columns(y: Array) -> Array:
    """Targets as (N, k), one of them for each sample if they are (N,)."""
    return y if y.ndim == 2 else y[:, None]


def _signs(y: Array) -> Array:
    y = columns(y)
    if is_concrete(y) and not ((y == 1) | (y == -1)).all():
        i, a = (int(k) for k in jnp.argwhere((y != 1) & (y != -1))[0])
        raise ValueError(
            f"y[{i}, {a}] = {y[i, a]}: labels must be +1 or -1 for this loss; for labels "
            "0 and 1 pass 2 * y - 1, for several classes use gf.losses.cross_entropy."
        )
    return y


def _no_margin(name: str) -> ValueError:
    return ValueError(
        f"the {name} loss has no margin; use logistic, exponential or cross_entropy."
    )
