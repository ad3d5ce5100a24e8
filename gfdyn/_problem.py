"""A data set and a loss: the risk that gradient flow descends.

Loss normalisation is written here and nowhere else.
"""

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .data import Dataset
from .losses import AbstractLoss, linear
from .nets import AbstractNet, check_net


Outputs = Float[Array, "samples outputs"]
Scalar = Float[Array, ""]
Reduction = Literal["mean", "sum"]


class Problem(eqx.Module):
    r"""The risk $R(\theta) = C(f_\theta(X))$, $C(F) = \frac1N \sum_i \ell(F_i, y_i)$.

    `reduction="sum"` leaves out the 1/N, which only rescales physical time. In the
    papers' column convention, $F$ and `cost_gradient_at_zero` ($G = \nabla C(0)$ in
    Bantzis et al., eq. 1) are transposed: (k, N) there, (N, k) here.
    """

    data: Dataset
    loss: AbstractLoss
    reduction: Reduction = eqx.field(static=True)

    def __init__(
        self,
        data: Dataset,
        loss: AbstractLoss,
        reduction: Reduction = "mean",
    ):
        """Pair data and loss; the loss checks the targets.

        Raises:
            TypeError: if `data` or `loss` is of another kind.
            ValueError: on targets that the loss cannot read, or an unknown reduction.
        """
        if not isinstance(data, Dataset):
            raise TypeError(
                f"data must be a gf.Dataset, got {type(data).__name__}; "
                "use gf.Dataset(x, y)."
            )
        if not isinstance(loss, AbstractLoss):
            raise TypeError(
                f"loss must be one of gf.losses (such as gf.losses.squared), got {loss!r}."
            )
        if reduction not in ("mean", "sum"):
            raise ValueError(f"reduction={reduction!r}; use 'mean' or 'sum'.")
        targets = loss.targets(data.y).astype(data.x.dtype)
        self.data = eqx.tree_at(lambda d: d.y, data, targets)
        self.loss = loss
        self.reduction = reduction

    def outputs(self, net: AbstractNet) -> Outputs:
        """The outputs on the data, (N, k)."""
        return net(self.data.x)

    def cost(self, outputs: Outputs) -> Scalar:
        """C of the outputs."""
        values = self.loss.values(outputs, self.data.y)
        return jnp.mean(values) if self.reduction == "mean" else jnp.sum(values)

    def log_cost(self, outputs: Outputs) -> Scalar:
        """log C of the outputs, where C itself may underflow.

        Raises:
            ValueError: for a loss that takes negative values.
        """
        total = jax.nn.logsumexp(self.loss.log_values(outputs, self.data.y))
        if self.reduction == "sum":
            return total
        return total - jnp.log(jnp.asarray(outputs.shape[0], total.dtype))

    def risk(self, net: AbstractNet) -> Scalar:
        """R(θ)."""
        return self.cost(self.outputs(net))

    def log_risk(self, net: AbstractNet) -> Scalar:
        """log R(θ), where R itself may underflow."""
        return self.log_cost(self.outputs(net))

    def cost_gradient(self, outputs: Outputs) -> Outputs:
        """∇C at the outputs, (N, k)."""
        return jax.grad(self.cost)(outputs)

    @property
    def cost_gradient_at_zero(self) -> Outputs:
        """G = ∇C(0), (N, k)."""
        return self.cost_gradient(jnp.zeros_like(self.data.y))

    def localized_risk(self, net: AbstractNet) -> Scalar:
        r"""$\mathcal L_0(\theta) = \langle G, f_\theta(X)\rangle$ (Bantzis et al.)."""
        return jnp.sum(self.cost_gradient_at_zero * self.outputs(net))

    def localized(self) -> "Problem":
        r"""The problem whose risk is $\mathcal L_0$: the same inputs, a linear loss.

        Whatever takes a problem then sees the first saddle alone: its gradient flow
        (which blows up in finite time for L > 2), its Clarke subdifferential.
        """
        towards = Dataset(self.data.x, -self.cost_gradient_at_zero)
        return Problem(towards, linear, reduction="sum")


def check_problem(problem: Any) -> None:
    """Raise unless it is a problem.

    Raises:
        TypeError: saying how to make one.
    """
    if not isinstance(problem, Problem):
        raise TypeError(
            f"problem must be a gf.Problem, got {problem!r}; use gf.Problem(data, loss)."
        )


def check_fit(problem: Problem, net: AbstractNet) -> None:
    """Raise unless the net takes the problem's inputs and gives its outputs.

    Raises:
        TypeError: if `net` is no gfdyn network.
        ValueError: on sizes or dtypes that do not agree.
    """
    check_net(net)
    x, y = problem.data.x, problem.data.y
    for name, ours, theirs in (
        ("inputs", net.in_size, x.shape[-1]),
        ("outputs", net.out_size, y.shape[-1]),
    ):
        if ours != theirs:
            raise ValueError(
                f"net has {ours} {name} but the data have {theirs}; its widths must "
                f"start with {x.shape[-1]} and end with {y.shape[-1]}."
            )
    dtype = net.weights[0].dtype
    if dtype != x.dtype:
        raise ValueError(
            f"net is {dtype} but the data are {x.dtype}; use data.astype({dtype}) or "
            f"a net with dtype={x.dtype}."
        )
