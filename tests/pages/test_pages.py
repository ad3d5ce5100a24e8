"""What stands in the pages beside the sessions that pytest runs: specs, scripts."""

import ast
import contextlib
import io
from pathlib import Path

import pytest
from code_blocks import DOCS, blocks

import gfdyn as gf


PAGES = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


@pytest.mark.parametrize("page", PAGES)
def test_python_is_a_session_or_a_script(page):
    """Sessions are run as doctests; scripts, which need files or a cluster, are read."""
    for block in blocks(page, "python"):
        if not block.startswith(">>> "):
            ast.parse(block)
            assert "import gfdyn as gf" in block


@pytest.mark.parametrize("page", PAGES)
def test_a_session_ends_before_its_block(page):
    """Else doctest takes the fence for what is expected."""
    for block in blocks(page, "python"):
        if block.startswith(">>> "):
            assert block.endswith("\n\n"), block


@pytest.mark.parametrize("page", PAGES)
def test_specs_are_read(page):
    axes = "\n[axes]\nnet.seed = [0]\n"
    for block in blocks(page, "toml"):
        assert gf.sweeps.parse_spec(block if "[axes]" in block else block + axes)


@pytest.mark.slow
def test_the_sweep_of_the_page_runs(tmp_path, monkeypatch):
    """Its spec, then its script, which leaves no point out."""
    monkeypatch.chdir(tmp_path)
    Path("spec.toml").write_text(blocks("sweeps.md", "toml")[0])
    script, printed = blocks("sweeps.md", "python")[0], io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(script, "sweeps.md", "exec"), {})
    assert "init_scale" in printed.getvalue() and "seed" in printed.getvalue()
    status = gf.sweeps.status("results/scales")
    assert status.total == 4 == sum(status.results.values())
