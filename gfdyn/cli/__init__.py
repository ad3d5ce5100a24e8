"""The command `gfdyn`: flows, escapes, descents and sweeps from a shell."""

from ._main import main as main
