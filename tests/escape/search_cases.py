"""Problems to search, and their stacks of nets."""

import numpy as np

import gfdyn as gf


RANK_ONE, OPTIMAL = np.sqrt(2) - 1, 0.5


def problem_of(x, y, dtype=np.float64):
    return gf.Problem(gf.Dataset(x.astype(dtype), y.astype(dtype)), gf.losses.squared)
