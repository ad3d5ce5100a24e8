"""Whole chains of saddles, from the origin to the fit."""

from ._chain import chain as chain
from ._result import Chain as Chain, Passage as Passage, Saddle as Saddle
from ._spectral import spectral as spectral
