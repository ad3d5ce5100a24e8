"""Theorems of the papers as checks: both sides, and whether their assumptions were met."""

from . import (
    bantzis as bantzis,
    galanti as galanti,
    le_jegelka as le_jegelka,
    timor as timor,
)
from ._check import Check as Check
