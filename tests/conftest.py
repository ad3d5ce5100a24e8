"""Double precision, and no silent promotion of dtypes or ranks."""

import gc
import os

import jax
import jaxtyping
import pytest

import gfdyn as gf
from gfdyn._program_limit import make_room


def _on_cores_of_its_own() -> None:
    """The workers of pytest-xdist share out the cores: the threads of two that are both on
    all cores wait for one another for most of the time."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if worker and hasattr(os, "sched_setaffinity"):
        cores, workers = os.sched_getaffinity(0), os.environ["PYTEST_XDIST_WORKER_COUNT"]
        own = sorted(cores)[int(worker.removeprefix("gw")) :: int(workers)]
        os.sched_setaffinity(0, own or cores)


_on_cores_of_its_own()
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# No modules with doctests.
collect_ignore_glob = ["conftest.py", "*/conftest.py"]

# Files of few tests that take minutes each.
LONG = (
    "test_experiments",
    "test_notebooks",
    "test_killed_engines",
    "test_exact_kinks",
    "test_kinks_together",
    "test_escape_search",
    "test_derivatives",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, so that no worker is left with one at the end."""
    items.sort(key=lambda item: item.path.stem not in LONG)


def pytest_collection_finish():
    """What is imported is no garbage, and to look through it takes a sixth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)


@pytest.fixture(autouse=True, scope="module")
def _fresh_caches():
    """Programs of finished files are dropped: too many crash XLA's CPU compiler, and fill
    the memory."""
    yield
    jax.clear_caches()
    gc.collect()


@pytest.fixture(autouse=True)
def _room_for_programs():
    """Those of one long file may be too many as well."""
    make_room()


@pytest.fixture
def compilation_cache():
    """The cache of compiled programs as it is, again after the test."""
    names = (
        "jax_compilation_cache_dir",
        "jax_persistent_cache_min_compile_time_secs",
        "jax_persistent_cache_min_entry_size_bytes",
    )
    before = {name: getattr(jax.config, name) for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture
def unhooked():
    """Without the type checker of the tests, as users run it."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def teacher() -> gf.Problem:
    """A small regression: a ReLU teacher on Gaussian inputs."""
    data = gf.data.teacher(12, [4, 3, 2], key=jax.random.key(1))
    return gf.Problem(data, gf.losses.squared)
