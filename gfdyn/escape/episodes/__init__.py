"""Plateaus and escapes along a trajectory."""

from ._aligned import aligned as aligned
from ._episodes import episodes as episodes
from ._plateaus import Episodes as Episodes, Escapes as Escapes, Plateaus as Plateaus
from ._segmentation import at as at, rests as rests
