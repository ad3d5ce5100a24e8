"""An optimum found roughly, taken to rounding: on its pattern the program is smooth."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ..._types import Mask, Scalar, Vector
from ...nets import MLP, FrozenGate
from ...problem import Problem
from ._programs import asks_for_margin, gaps


_LIMITS = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15, "max_nfev": 50}
# How near to 1 a margin is active, relative
_ACTIVE = 1e-2


def polish(problem: Problem, net: MLP, off: Mask, kinks: Mask) -> MLP:
    r"""The solution of the KKT equations on the pattern of a net nearby:

    $$\theta + \nabla_\theta\big(\nu \cdot c(\theta) + \mu \cdot z(\theta)\big) = 0,
    \quad c_i(\theta) = 0,\quad z_a(\theta) = 0,$$

    over the active gaps c and the pre-activations z at kinks. By Levenberg–Marquardt
    (scipy), as optima may come in families; whether it converged is for `kkt` to say, and
    whether gates are the signs of z.

    Args:
        off: where gates are off, (N, n_l) for each hidden layer, all kinks among them.
        kinks: where z is held at 0.
    """
    # Takes a sixth of the time of importing gfdyn, and few come here.
    from scipy.optimize import least_squares

    gap = gaps(problem, problem.outputs(net))
    active = jnp.abs(gap) <= _ACTIVE if asks_for_margin(problem) else jnp.ones_like(gap) > 0
    point = net, jnp.zeros_like(gap), tuple(jnp.zeros(k.shape, gap.dtype) for k in kinks)
    start = ravel_pytree(point)[0]
    size = ravel_pytree(net)[0].size
    # θ, and the multipliers of what is held at 0
    used = np.concatenate([np.ones(size, bool), *map(np.ravel, (active, *kinks))])

    def at(values: np.ndarray) -> Vector:
        return start.at[np.flatnonzero(used)].set(values.astype(start.dtype))

    def slope(values: np.ndarray) -> np.ndarray:
        found = _slope(problem, point, off, at(values))
        return np.asarray(found, np.float64)[used]

    def curvature(values: np.ndarray) -> np.ndarray:
        found = _curvature(problem, point, off, at(values))
        return np.asarray(found, np.float64)[np.ix_(used, used)]

    values = np.array(start, np.float64)[used]
    pulls = curvature(values)[:size, size:]
    values[size:] = np.linalg.lstsq(pulls, -slope(values)[:size], rcond=None)[0]
    # scipy's stubs know of strings only.
    jac: Any = curvature
    found = least_squares(slope, values, jac, method="lm", **_LIMITS)
    return ravel_pytree(point)[1](at(found.x))[0]


def _lagrangian(problem: Problem, point: Any, off: Mask, flat: Vector) -> Scalar:
    """½‖θ‖² + ν · c(θ) + μ · z(θ) at `flat`, which is ravelled as `point` is."""
    net, nu, mu = ravel_pytree(point)[1](flat)
    gates = [FrozenGate(jnp.where(o, 0, 1).astype(flat.dtype)) for o in off]
    outputs, z = net.forward(problem.data.x, gates)
    held = sum(jnp.vdot(m, zl) for m, zl in zip(mu, z, strict=True))
    theta = ravel_pytree(net)[0]
    return 0.5 * jnp.vdot(theta, theta) + jnp.vdot(nu, gaps(problem, outputs)) + held


_slope = eqx.filter_jit(jax.grad(_lagrangian, argnums=3))
_curvature = eqx.filter_jit(jax.hessian(_lagrangian, argnums=3))
