"""The site builds without a warning, and a reader finds what there is in it."""

import functools
import os
import re
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import chromium
import pytest

import gfdyn as gf


ROOT = Path(__file__).parents[2]
PAPERS = ("bantzis", "le_jegelka", "timor", "galanti")
ROOMS = (
    "data",
    "losses",
    "nets",
    "flows",
    "solvers",
    "stopping",
    "diagnostics",
    "escape",
    "sweeps",
    "plotting",
    "theory",
)
SIZES = {"phone": (390, 844), "desktop": (1280, 800)}


class Page(HTMLParser):
    """What a page has of ids, links, things that it loads, and text that is no code."""

    def __init__(self, text: str):
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.cited: list[str] = []
        self.loads: list[str] = []
        self.prose: list[str] = []
        self._inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if name := attributes.get("id"):
            self.ids.add(name)
        if (link := attributes.get("href")) is not None:
            is_load = tag == "link" and attributes.get("rel") != "canonical"
            (self.loads if is_load else self.links).append(link)
            if attributes.get("class") == "cited":
                self.cited.append(link)
        if source := attributes.get("src"):
            self.loads.append(source)
        if tag in ("code", "pre", "script", "style"):
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._inside and tag == self._inside[-1]:
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.prose.append(data)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site: strict, so that any warning has failed it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180
    )
    assert not built.returncode, built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    """By their paths within the site."""
    found = sorted(site.rglob("*.html"))
    return {str(path.relative_to(site)): Page(path.read_text("utf-8")) for path in found}


def target(page: str, link: str) -> tuple[str, str] | None:
    """The path and the anchor that a link on a page leads to, None for another site."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    path = os.path.normpath(Path(page).parent / unquote(parts.path)) if parts.path else page
    return path, unquote(parts.fragment)


def public_names() -> list[str]:
    """As a user meets them, by import."""
    modules = [gf, *(getattr(gf, room) for room in ROOMS)]
    modules += [getattr(gf.theory, paper) for paper in PAPERS]
    names = []
    for module in modules:
        for name, value in vars(module).items():
            if name.startswith("_") or isinstance(value, types.ModuleType):
                continue
            if (
                module is gf.stopping
                and getattr(value, "__module__", "") != module.__name__
            ):
                continue
            names.append(f"{module.__name__}.{name}")
    return names


def test_no_link_is_broken(site, pages):
    broken = []
    for page, found in pages.items():
        for link in (*found.links, *found.loads):
            # The page of errors is shown at any address, so its links begin at the root.
            if (where := target(page, link)) is None or page == "404.html":
                continue
            path, anchor = where
            known = pages[path].ids if path in pages else set()
            if not (site / path).is_file() or (anchor and anchor not in known):
                broken.append(f"{page}: {link}")
    assert len(pages) > 45
    assert not broken


def test_nothing_is_loaded_from_elsewhere(site, pages):
    for page, found in pages.items():
        outside = [load for load in found.loads if urlsplit(load).netloc]
        assert not outside, page
    for style in site.rglob("*.css"):
        assert "url(http" not in style.read_text("utf-8"), style


def test_every_public_name_is_described(pages):
    described = set().union(*(page.ids for page in pages.values()))
    names = public_names()
    assert len(names) > 400
    assert not [name for name in names if name not in described]


def test_public_names_are_read_right(monkeypatch):
    """What the build reads from files is what one imports."""
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "hooks"))
    rooms = import_module("names").public_names()
    read = {f"{room}.{name}" for room, names in rooms.items() for name in names}
    assert read == set(public_names())


def test_all_is_two_clicks_away(pages):
    """Install, `solve`, each theorem of each paper, the sharp bits."""
    within_one = {target("index.html", link) for link in pages["index.html"].links}
    reached = set(within_one)
    for path in {where[0] for where in within_one if where and where[0] in pages}:
        reached |= {target(path, link) for link in pages[path].links}
    assert ("start.html", "install") in reached
    assert ("api/solve.html", "gfdyn.solve") in reached
    assert "sharp_bits.html" in {where[0] for where in within_one if where}
    for paper in PAPERS:
        theory = getattr(gf.theory, paper)
        for name, value in vars(theory).items():
            returned = getattr(value, "__annotations__", {}).get("return")
            if returned is gf.theory.Check:
                anchor = f"{theory.__name__}.{name}"
                assert (f"papers/{paper}.html", anchor) in reached, anchor


def test_what_is_cited_is_found(pages):
    """Statements of papers lead to their rows, from other pages too."""
    reached = {
        (where, page)
        for page, found in pages.items()
        for link in found.cited
        if (where := target(page, link))
    }
    for (path, anchor), page in reached:
        assert anchor in pages[path].ids, f"{page}: {path}#{anchor}"
    rows = {where for where, _ in reached if re.search(r"-\d+$|^app-[a-z]$", where[1])}
    assert len(rows) > 50
    assert {path for path, _ in rows} == {f"papers/{paper}.html" for paper in PAPERS}
    assert (("papers/bantzis.html", "prop-3-2"), "api/escape.html") in reached
    assert (("papers/timor.html", "eq-19"), "papers/timor.html") in reached


def test_first_page_shows_what_it_is(pages):
    first = pages["index.html"]
    assert "escape.png" in first.loads
    text = (ROOT / "docs" / "index.md").read_text("utf-8")
    assert "make run" in text and "make test" in text and "pip install" in text


def test_equations_are_drawn(site, pages):
    """No dollar is left; formulas of docstrings are MathML as well."""
    for name, page in pages.items():
        assert "$" not in "".join(page.prose), name
    assert "<math" in (site / "api" / "solve.html").read_text("utf-8")


def test_an_unknown_command_of_latex_fails(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "hooks"))
    equations = import_module("equations")
    assert "<mfrac>" in equations.mathml(r"\frac12", "inline")
    assert "‖" in equations.mathml(r"\Big\| x \Big\|", "block")
    with pytest.raises(ValueError, match="has no MathML"):
        equations.mathml(r"\unheardof x", "inline")


def test_tables_are_those_of_the_measurements(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "hooks"))
    tables = import_module("tables")
    page = tables.filled("# A\n\n<!-- table: sweeps -->\n")
    ratio = tables.report("sweeps")["rows"][0]["ratio"]
    assert f"| {ratio:.2f} |" in page and "<!--" not in page
    claims = tables.filled("<!-- claims: bantzis/fig5 -->")
    assert claims.count("| HOLDS |") > 3 and claims.count("; commit ") == 1
    with pytest.raises(KeyError):
        tables.filled("<!-- table: nothing -->")


def test_a_trial_is_not_shown(monkeypatch, tmp_path):
    """Its verdicts say nothing of a paper."""
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "hooks"))
    tables = import_module("tables")
    (tmp_path / "a" / "trial").mkdir(parents=True)
    (tmp_path / "a" / "trial" / "claims.json").write_text('{"settings": {"smoke": true}}')
    monkeypatch.setattr(import_module("stamps"), "MEASURED", tmp_path)
    for page in ("<!-- claims: a/trial -->", "![A](../measured/a/trial/b.png)"):
        with pytest.raises(ValueError, match="trial"):
            tables.filled(page)


def test_each_figure_says_how_it_was_run(monkeypatch):
    """Directly below it, and not again below the claims."""
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "hooks"))
    tables, stamps = import_module("tables"), import_module("stamps")
    figures = 0
    for path in sorted((ROOT / "docs").rglob("*.md")):
        page = tables.filled(path.read_text("utf-8"))
        lines = [line for line in page.splitlines() if line]
        drawn = [i for i, line in enumerate(lines) if "](../measured/" in line]
        for i in drawn:
            name = "/".join(lines[i].split("measured/")[1].split("/")[:2])
            assert lines[i + 1] == stamps.stamp(name)
        figures += len(drawn)
        assert sum("; commit " in line for line in lines) == len(drawn), path
    assert figures >= len(list(stamps.MEASURED.rglob("commit.txt"))) > 5


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        del format, args


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where the site is served while the tests run."""
    handler = functools.partial(_Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Browser]:
    program = chromium.find()
    if program is None:
        pytest.skip("no Chromium on the path; on Debian: apt-get install chromium")
    with chromium.browser(program, tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.mark.parametrize("size", SIZES)
def test_pages_are_drawn(address, tab, pages, size):
    """No script fails, no other host is asked, no page is wider than its window."""
    width, height = SIZES[size]
    for page in pages:
        tab.load(f"{address}/{page}", width, height)
        assert not tab.errors(), page
        assert all(url.startswith((address, "data:")) for url in tab.requests()), page
        wide = tab.ask("document.documentElement.scrollWidth")
        assert wide <= width, f"{page} is {wide} wide"


@pytest.mark.parametrize("size", SIZES)
def test_the_first_figure_is_on_the_first_screen(address, tab, size):
    width, height = SIZES[size]
    tab.load(f"{address}/index.html", width, height)
    bottom = tab.ask("document.querySelector('article img').getBoundingClientRect().bottom")
    assert 0 < bottom <= height


def test_search_finds_a_theorem(address, tab):
    tab.load(f"{address}/index.html?q=rank_one_layers", *SIZES["desktop"])
    found = tab.ask(
        """new Promise(found => {
          const look = () => document.querySelector('.md-search-result__link')
            ? found(document.querySelector('.md-search-result__link').href)
            : setTimeout(look, 50)
          setTimeout(() => found(''), 10000)
          look()
        })"""
    )
    assert "papers/bantzis.html" in found
