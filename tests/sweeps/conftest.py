"""Sweeps that several files of tests look at, and do not change."""

import pytest
from page_cases import DEPTHS, LOST, MISSING, SCALES, SEEDS, point
from sweep_cases import DESCENTS, FLOWS, run

from gfdyn import sweeps
from gfdyn.sweeps.results._store import Store
from gfdyn.sweeps.spec._plan import make_plan, resolved


@pytest.fixture(scope="session")
def descents(tmp_path_factory):
    """A finished sweep of descents."""
    out = tmp_path_factory.mktemp("sweeps") / "descents"
    assert run(DESCENTS, out) == sweeps.Status(8, {"successful": 8}, 0)
    return out


@pytest.fixture(scope="session")
def flows(tmp_path_factory):
    """A finished sweep of flows."""
    out = tmp_path_factory.mktemp("sweeps") / "flows"
    assert run(FLOWS, out).done == 2
    return out


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A sweep of points written by hand."""
    out = tmp_path_factory.mktemp("sweep")
    spec = resolved(
        sweeps.Spec(
            name="by </script> hand",
            run=sweeps.EscapeSettings(tau_max=40.0),
            axes={"net.init_scale": SCALES, "net.depth": DEPTHS, "net.seed": SEEDS},
        )
    )
    store = Store(out)
    store.create()
    sweeps.write_spec(spec, store.spec)
    store.manifest.write_text('{"git": "none"}')
    plan = make_plan(spec)
    for batch in plan.batches:
        for digest, settings in zip(batch.digests, batch.points, strict=True):
            place = plan.places[digest]
            if place == LOST:
                store.write_failure(digest, "its worker was killed")
            elif place != MISSING:
                store.write_point(digest, settings, point(place, settings.net.depth))
    return out


@pytest.fixture(scope="session")
def page(folder):
    """Its report."""
    path = sweeps.report(folder)
    assert path == folder / "report.html"
    return path
