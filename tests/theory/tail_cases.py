"""Nets with tails, and their constants."""

import numpy as np


def spectral(w):
    return np.linalg.norm(w, 2) ** 2


def positive(a):
    return max(np.linalg.eigvalsh(a)[-1], 0)
