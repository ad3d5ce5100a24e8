"""Batch normalisation: pre-activations centred and scaled by the statistics of a batch."""

from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float


Channels = Float[Array, " channels"]
Units = Float[Array, "samples units"]
Normalisation = Callable[[int, DTypeLike], "BatchNorm"]

# Deviations of so many units of the precision, relative to the mean, are none.
_ROUNDING = 16.0


class BatchNorm(eqx.Module):
    r"""$n(z) = \gamma\,(z - \mu)/\sqrt{\operatorname{Var} + \epsilon} + \beta$ of each
    channel, μ and Var its mean and variance over the batch (and over positions).

    Galanti & Poggio, eq. 5. The batch is what the net is evaluated on: that of the step in
    SGD, all of the data in `Problem.risk`; there are no running averages. Var is that of
    the population. A channel that does not vary is β, also for ε = 0.

    Attributes:
        gain, shift: γ and β, (channels,), or () for one of all; None for 1 and 0.
        channels: their number.
        detach: whether derivatives take $1/\sqrt{\operatorname{Var} + \epsilon}$ (but not
            μ) for a constant: the paper's pseudo-gradient, which no function has.
        eps: ε.
    """

    gain: Float[Array, "*channels"] | None
    shift: Float[Array, "*channels"] | None
    channels: int = eqx.field(static=True)
    detach: bool = eqx.field(static=True)
    eps: float = eqx.field(static=True)

    def __call__(self, z: Units) -> Units:
        """n(z).

        Raises:
            ValueError: for a single sample.
        """
        mean, factor = self.statistics(z)
        rows = (z.reshape(-1, self.channels) - mean[None, :]) * factor[None, :]
        if self.shift is not None:
            rows = rows + jnp.broadcast_to(self.shift, mean.shape)[None, :]
        return rows.reshape(z.shape)

    def statistics(self, z: Units) -> tuple[Channels, Channels]:
        r"""μ and $\gamma/\sqrt{\operatorname{Var} + \epsilon}$.

        Raises:
            ValueError: for a single sample.
        """
        if len(z) < 2:
            raise ValueError(
                f"batch normalisation of {len(z)} sample, which has no variance; give 2 or "
                "more at a time, or fix the statistics: gf.nets.normalised_by(net, x)."
            )
        rows = z.reshape(-1, self.channels)
        mean = jnp.mean(rows, axis=0)
        variance = jnp.mean((rows - mean[None, :]) ** 2, axis=0) + self.eps
        rounding = _ROUNDING * float(jnp.finfo(z.dtype).eps) * mean
        varies = variance > jax.lax.stop_gradient(rounding) ** 2
        scale = jnp.where(varies, jax.lax.rsqrt(jnp.where(varies, variance, 1)), 0)
        scale = jax.lax.stop_gradient(scale) if self.detach else scale
        return mean, scale if self.gain is None else self.gain * scale


def batch_norm(
    affine: Literal["channel", "scalar"] | None = "channel",
    *,
    detach: bool = True,
    eps: float = 1e-5,
) -> Normalisation:
    """What `norm=` of a block takes: a `BatchNorm` that starts from γ = 1 and β = 0.

    Args:
        affine: γ and β of each channel, or scalars, as Galanti & Poggio write them (which
            trains badly); None for neither.
        detach: whether derivatives take the scale for a constant, as theirs do; torch's
            do not.
        eps: ε; 0 where an identity is to hold exactly.

    Raises:
        ValueError: on another `affine`, or a negative ε.
    """
    if affine not in ("channel", "scalar", None):
        raise ValueError(f"affine={affine!r}; use 'channel', 'scalar' or None.")
    if not eps >= 0:
        raise ValueError(f"eps={eps} must be 0 or positive.")

    def of(channels: int, dtype: DTypeLike) -> BatchNorm:
        shape = (channels,) if affine == "channel" else ()
        gain = None if affine is None else jnp.ones(shape, dtype)
        shift = None if affine is None else jnp.zeros(shape, dtype)
        return BatchNorm(gain, shift, channels, detach, eps)

    return of
