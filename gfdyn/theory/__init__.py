"""Theorems of the papers as checks: both sides, and whether their assumptions were met."""

from . import bantzis as bantzis
from ._check import Check as Check
