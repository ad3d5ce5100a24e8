"""Curvature of the localized risk on the sphere: which escape directions are stable."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from ...diagnostics import direction
from ...nets import AbstractNet
from ...problem import Problem, check_fit


class SphereHessian(eqx.Module):
    """Eigenvalues on the tangent space, rising, (P − 1,), and the eigenvectors: unit nets
    orthogonal to ρ, with that leading axis. P is the number of parameters."""

    eigenvalues: Float[Array, " tangents"]
    eigenvectors: AbstractNet


def sphere_hessian(problem: Problem, net: AbstractNet) -> SphereHessian:
    r"""The Riemannian Hessian of $\mathcal L_0$ on the sphere of radius √L at the net's
    direction ρ:

    $$P_t \, (\nabla^2 \mathcal L_0(\rho) + s I) \, P_t, \quad
    P_t = I - \rho\rho^\top/L, \quad s = -\mathcal L_0(\rho).$$

    At an escape direction all eigenvalues are ≥ 0 if it attracts the localized flow, and
    0 along its continuous symmetries; the flow comes near like e^{−λτ}, λ the smallest
    positive one, and its speed like e^{−2λτ}.

    The Hessian is that of the gates at hand. At a kink (as for a neuron with zero weights,
    which σ'(0) = 0 gives the eigenvalue s) it says nothing of the directions that open or
    close the gate: see `gf.diagnostics.kink_count`. Dense, P × P: for small nets.

    Raises:
        TypeError: if `net` is no gfdyn network.
        ValueError: if net and problem do not fit, or for a net without a degree.
    """
    check_fit(problem, net)
    return _sphere_hessian(problem, direction(problem, net))


@eqx.filter_jit
def _sphere_hessian(problem: Problem, rho: AbstractNet) -> SphereHessian:
    flat, unravel = ravel_pytree(rho)
    with jax.default_matmul_precision("highest"):
        hessian = jax.hessian(lambda theta: problem.localized_risk(unravel(theta)))(flat)
        basis = _tangents(flat)
        inner = basis.T @ hessian @ basis
        eigenvalues, vectors = jnp.linalg.eigh((inner + inner.T) / 2)
        eigenvectors = jax.vmap(unravel)((basis @ vectors).T)
    return SphereHessian(eigenvalues - problem.localized_risk(rho), eigenvectors)


def _tangents(radial: Array) -> Array:
    """An orthonormal basis of what is orthogonal to a vector, (P, P − 1): the columns but
    the first of the Householder reflection that takes it to the first axis."""
    unit = radial / jnp.linalg.norm(radial)
    v = unit.at[0].add(jnp.where(unit[0] < 0, -1.0, 1.0))
    identity = jnp.eye(len(v), dtype=v.dtype)
    return (identity - 2 / (v @ v) * jnp.outer(v, v))[:, 1:]
