"""Losses of one sample; see `AbstractLoss`."""

from ._from_function import FromFunction as FromFunction, from_function as from_function
from ._standard import (
    AbstractLoss as AbstractLoss,
    CrossEntropy as CrossEntropy,
    Exponential as Exponential,
    Linear as Linear,
    Logistic as Logistic,
    Squared as Squared,
    cross_entropy as cross_entropy,
    exponential as exponential,
    linear as linear,
    logistic as logistic,
    squared as squared,
)
from ._weighted import Weighted as Weighted, weighted as weighted
