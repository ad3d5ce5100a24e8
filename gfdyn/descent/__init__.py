"""Gradient descent and SGD, on the same axis as flows."""

from ._arguments import make_run as make_run
from ._descend import descend as descend, to_trajectory as to_trajectory
from ._rates import (
    LearningRate as LearningRate,
    NormScaledRate as NormScaledRate,
    SteppedRate as SteppedRate,
)
from ._sampling import on_batch as on_batch, uniform_subsets as uniform_subsets
from ._sgd import Run as Run, advance as advance, begin as begin
