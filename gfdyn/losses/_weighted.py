"""Losses whose samples count more or less."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Shaped

from .._tracing import is_concrete
from .._types import Outputs
from ._standard import AbstractLoss, PerSample


class Weighted(AbstractLoss):
    """The loss of `weighted`."""

    loss: AbstractLoss
    samples: Float[Array, " samples"] | None
    classes: Float[Array, " k"] | None

    def targets(self, y: Shaped[Array, " samples *k"]) -> Shaped[Array, "samples k"]:
        """As the loss reads them.

        Raises:
            ValueError: if there is not one weight for each sample, or class.
        """
        targets = self.loss.targets(y)
        for name, weights, size in (
            ("samples", self.samples, targets.shape[0]),
            ("classes", self.classes, targets.shape[1]),
        ):
            if weights is not None and len(weights) != size:
                raise ValueError(
                    f"{name} has {len(weights)} weights, but there are {size} {name}."
                )
        if self.classes is not None and is_concrete(targets):
            wrong = ~((targets == 0) | (targets == 1)).all() | (targets.sum(1) != 1).any()
            if wrong:
                raise ValueError(
                    "classes weighs one-hot targets or class labels; weigh others by "
                    "samples=."
                )
        return targets

    def values(self, outputs: Outputs, targets: Outputs) -> PerSample:
        """w ℓ of each sample."""
        return self._weights(targets) * self.loss.values(outputs, targets)

    def log_values(self, outputs: Outputs, targets: Outputs) -> PerSample:
        """log w + log ℓ of each sample."""
        return jnp.log(self._weights(targets)) + self.loss.log_values(outputs, targets)

    def margins(self, outputs: Outputs, targets: Outputs) -> PerSample:
        """Those of the loss: weights do not change them."""
        return self.loss.margins(outputs, targets)

    def _weights(self, targets: Outputs) -> PerSample:
        weights = jnp.ones(len(targets), targets.dtype)
        if self.samples is not None:
            if len(self.samples) != len(targets):
                raise ValueError(
                    f"samples has {len(self.samples)} weights, but the loss is of "
                    f"{len(targets)} samples: batches do not know which they are; leave "
                    "batch_size at None, or weigh by classes=."
                )
            weights = self.samples.astype(targets.dtype)
        if self.classes is not None:
            weights = weights * (targets @ self.classes.astype(targets.dtype))
        return weights


def weighted(
    loss: AbstractLoss,
    *,
    samples: ArrayLike | Sequence[float] | None = None,
    classes: ArrayLike | Sequence[float] | None = None,
) -> Weighted:
    """The loss with w ℓ for ℓ, the risk still the mean (or sum) over samples.

    Args:
        loss: ℓ.
        samples: w of each sample, (N,), in the order of the data.
        classes: w of each class, (k,), of one-hot targets or class labels; with `samples`
            the product.

    Raises:
        TypeError: if `loss` is none.
        ValueError: on weights that are not positive and finite numbers in one row.
    """
    if not isinstance(loss, AbstractLoss):
        raise TypeError(
            f"loss must be one of gf.losses (such as gf.losses.squared), got {loss!r}."
        )

    def row(name: str, weights: ArrayLike | Sequence[float] | None) -> Array | None:
        if weights is None:
            return None
        found = jnp.asarray(weights, float)
        known = np.asarray(found) if is_concrete(found) else np.ones(1)
        if found.ndim != 1 or not (np.isfinite(known) & (known > 0)).all():
            raise ValueError(
                f"{name}={weights} must be positive weights in one row; leave samples out "
                "of the data rather than give them none."
            )
        return found

    return Weighted(loss, row("samples", samples), row("classes", classes))
