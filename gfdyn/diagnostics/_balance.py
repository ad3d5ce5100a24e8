"""Norms of layers and neurons, and what gradient flow conserves of them."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..nets import AbstractNet, norm
from ..problem import Problem


def layer_norms(problem: Problem, net: AbstractNet) -> Float[Array, " layers"]:
    """‖W_l‖_F, l = 1, …, L."""
    del problem
    return jnp.stack([norm(w) for w in net.weights])


def neuron_balance(
    problem: Problem, net: AbstractNet
) -> tuple[Float[Array, " width"], ...]:
    r"""$\|W_{l+1,\cdot i}\|^2 - \|W_{l,i\cdot}\|^2$, (n_l,) for each hidden layer of
    which `gf.diagnostics.invariants` has one.

    The diagonal of `balance`: conserved by gradient flow for every homogeneous activation
    (Timor et al., Lemma 9).
    """
    del problem
    return tuple(i.diagonal for i in net.conserved() if i.form != "norms")


def balance(problem: Problem, net: AbstractNet) -> tuple[Float[Array, "width width"], ...]:
    r"""$W_{l+1}^\top W_{l+1} - W_l W_l^\top$, (n_l, n_l) for each hidden layer of which
    `gf.diagnostics.invariants` has one.

    Conserved for linear layers, and where no gate ever flips; for ReLU in general only
    its diagonal is.
    """
    del problem
    return tuple(i.matrix for i in net.conserved() if i.form in ("full", "blocks"))
