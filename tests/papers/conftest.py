"""The experiments as modules."""

from importlib import import_module
from pathlib import Path

import pytest


@pytest.fixture
def module(monkeypatch):
    """A module of the experiments by name."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    return lambda name: import_module(f"experiments.{name}")
