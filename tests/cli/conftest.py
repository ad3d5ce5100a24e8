"""The command as its tests call it."""

from typing import Any

import jax
import pytest
from cli_cases import FIGURES, check_settings, check_summary, strict_json

import gfdyn as gf
from gfdyn.cli import _main as cli


@pytest.fixture(autouse=True)
def _precision():
    """The command sets the precision of jax, the other tests want theirs back."""
    before = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.fixture
def run(tmp_path, capsys):
    """Run the command and look at all that it leaves behind."""

    def run(*arguments: str) -> tuple[gf.Trajectory, dict[str, Any], str]:
        assert cli.main([*arguments, "--out", str(tmp_path)]) == 0
        out = tmp_path / arguments[0]
        names = {path.name for path in out.iterdir()}
        assert names == FIGURES | {"trajectory.nc", "config.json"}
        for name in FIGURES:
            content = (out / name).read_bytes()
            assert content.startswith(b"\x89PNG") and len(content) > 5_000, name
        printed = capsys.readouterr().out
        traj = gf.load(out / "trajectory.nc")
        check_summary(printed, traj)
        settings = strict_json(out / "config.json")
        check_settings(settings, arguments, traj)
        return traj, settings, printed

    return run
