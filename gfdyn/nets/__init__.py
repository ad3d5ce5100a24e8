"""Equinox networks, written against gates; see `AbstractNet`."""

from ._activation import (
    FrozenGate as FrozenGate,
    PiecewiseLinear as PiecewiseLinear,
    identity as identity,
    leaky_relu as leaky_relu,
    relu as relu,
)
from ._base import AbstractNet as AbstractNet
from ._initialisation import (
    balanced as balanced,
    dominated as dominated,
    gaussian as gaussian,
    norm as norm,
    scaled_to_norm as scaled_to_norm,
    zero_output as zero_output,
)
from ._mlp import MLP as MLP
