"""Data sets: the samples that a problem is posed on, and where to get some."""

from ._dataset import Dataset as Dataset, one_hot as one_hot, standardise as standardise
from ._images import digits as digits, mnist as mnist
from ._precision import PrecisionWarning as PrecisionWarning
from ._synthetic import (
    antipodal as antipodal,
    circle as circle,
    gaussian as gaussian,
    orthogonal as orthogonal,
    parallel as parallel,
    rank_one as rank_one,
    teacher as teacher,
    two_points as two_points,
    xor as xor,
)
