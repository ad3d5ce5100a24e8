"""Trajectories that several files of tests look at."""

from collections.abc import Callable
from typing import Any

import pytest

import gfdyn as gf


@pytest.fixture(scope="session")
def made() -> Callable[[Callable[[], gf.Trajectory]], gf.Trajectory]:
    """Each trajectory once."""
    store: dict[Any, gf.Trajectory] = {}

    def get(maker: Callable[[], gf.Trajectory]) -> gf.Trajectory:
        if maker not in store:
            store[maker] = maker()
        return store[maker]

    return get
