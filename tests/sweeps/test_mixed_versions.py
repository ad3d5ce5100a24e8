"""Sweeps of more than one version: refused unasked, and shown if asked for."""

import json
import shutil
from pathlib import Path

import pytest
from fixtures import sweep_files
from sweep_cases import DESCENTS, run

import gfdyn as gf
from gfdyn import sweeps
from gfdyn.sweeps.results._store import Store


def test_manifest(descents):
    manifest = json.loads((descents / "manifest.json").read_text())
    assert manifest["versions"]["gfdyn"] == gf.__version__
    assert set(manifest) == {"versions", "python", "machine", "git", "x64"}
    assert manifest["x64"] is True


UNKNOWN = "no manifest.json says which versions computed the points that are there"
REMEDY = (
    "give a folder of its own, or go on all the same with mix_versions=True "
    "(--mix-versions), as the manifest will say."
)


def make_other(manifest: Path, kind: str) -> tuple[str, str]:
    """A manifest of other versions, or of none that are known: what is said of it, and
    what the mixture is called."""
    content = json.loads(manifest.read_text())
    now = dict(content["versions"])
    if kind in ("gfdyn", "jax", "jaxlib"):
        content["versions"][kind] = "0.0.1"
        said = (
            f"its points were computed with {kind}=0.0.1 where this process has {now[kind]}"
        )
    elif kind == "x64":
        content["x64"] = False
        said = "its points were computed with x64=False where this process has True"
    else:
        said = UNKNOWN
    manifest.unlink()
    if kind == "torn":
        manifest.write_text(json.dumps(content)[:40])
    elif kind == "a folder":
        manifest.mkdir()
    elif kind == "a dangling link":
        manifest.symlink_to(manifest.with_name("nowhere"))
    elif kind != "missing":
        manifest.write_text(json.dumps(content))
    versions = {name: content["versions"][name] for name in ("gfdyn", "jax", "jaxlib")}
    labels = ", ".join(f"{n} {v}" for n, v in versions.items()) + f", x64 {content['x64']}"
    return said, "unknown versions" if said == UNKNOWN else labels


KINDS = ("gfdyn", "jax", "jaxlib", "x64", "missing", "torn", "a folder", "a dangling link")


@pytest.mark.parametrize("kind", KINDS)
def test_versions_are_not_mixed_unasked(kind, descents, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(descents, out)
    next(Store(out).point_files()).path.unlink()
    before = sweep_files(out)
    said, label = make_other(out / "manifest.json", kind)
    with pytest.raises(ValueError) as error:
        run(DESCENTS, out)
    assert str(error.value) == f"{out}: {said}; {REMEDY}"
    assert sweep_files(out) == before
    status = run(DESCENTS, out, mix_versions=True)
    assert status.ok == 8 and sweep_files(out) == sweep_files(descents)
    assert status.mixture.startswith(f"{label}; gfdyn {gf.__version__}, jax ")
    assert str(sweeps.status(out)) == (
        f"8 of 8 points done, 8 successful; of mixed versions: {status.mixture}"
    )
    assert f"mix_versions: {said}" in (out / "log.txt").read_text()
    manifest = json.loads((out / "manifest.json").read_text())
    assert len(manifest["before"]) == 1
    assert manifest["versions"]["gfdyn"] == gf.__version__
    assert f'"mixture": "{status.mixture}"' in sweeps.report(out).read_text()
    # From here on these are the versions of the folder.
    next(Store(out).point_files()).path.unlink()
    assert run(DESCENTS, out).mixture == status.mixture


def test_versions_are_mixed_more_than_once(descents, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(descents, out)
    for kind in ("jax", "missing", "gfdyn"):
        next(Store(out).point_files()).path.unlink()
        make_other(out / "manifest.json", kind)
        found = run(DESCENTS, out, mix_versions=True).mixture
    # What was before the manifest was lost is lost.
    first, second, third = found.split("; ")
    assert first == "unknown versions"
    assert second.startswith("gfdyn 0.0.1, ") and third.startswith(
        f"gfdyn {gf.__version__}"
    )


def test_where_nothing_is_mixed_any_version_goes_on(descents, tmp_path):
    """A sweep that is done, and one that has not begun."""
    done, bare = tmp_path / "done", tmp_path / "bare"
    shutil.copytree(descents, done)
    make_other(done / "manifest.json", "jax")
    assert run(DESCENTS, done).ok == 8
    bare.mkdir()
    for name in ("spec.toml", "manifest.json"):
        shutil.copy(descents / name, bare)
    make_other(bare / "manifest.json", "jax")
    found = run(DESCENTS, bare)
    assert found.ok == 8 and found.mixture == ""
    manifest = (bare / "manifest.json").read_text()
    assert manifest == (descents / "manifest.json").read_text()


def test_manifests_without_precision_are_of_any(descents, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(descents, out)
    next(Store(out).point_files()).path.unlink()
    manifest = json.loads((out / "manifest.json").read_text())
    del manifest["x64"]
    (out / "manifest.json").write_text(json.dumps(manifest))
    assert run(DESCENTS, out).mixture == ""


def test_batches_under_way_are_of_a_version(tmp_path, monkeypatch):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    write = Store.write_checkpoint
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Store, "write_checkpoint", lambda *a: stop(write(*a)))
        run(DESCENTS, tmp_path)
    assert sweeps.status(tmp_path).done == 0 and sweeps.status(tmp_path).under_way == 1
    make_other(tmp_path / "manifest.json", "jaxlib")
    with pytest.raises(ValueError, match="computed with jaxlib=0.0.1 where this process"):
        run(DESCENTS, tmp_path)
