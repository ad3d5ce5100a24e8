"""The search for escape directions from many starts."""

from ._directions import Directions as Directions
from ._hessian import SphereHessian as SphereHessian, sphere_hessian as sphere_hessian
from ._projected_descent import (
    Descent as Descent,
    FallingRate as FallingRate,
    projected_descent as projected_descent,
)
from ._residual import clarke_residual as clarke_residual
from ._search import search as search
