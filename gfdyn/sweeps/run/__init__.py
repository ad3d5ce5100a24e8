"""A sweep computed: here, in processes, or on a cluster."""

from ._run import run as run
from ._worker import configure as configure
