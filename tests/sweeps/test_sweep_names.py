"""The report of a sweep of any name."""

import html
import json
import shutil
from html.parser import HTMLParser

import pytest
from page_cases import dump_dom, needs_chromium, run_in_node, table_of

from gfdyn import sweeps
from gfdyn.sweeps.results import _page
from gfdyn.sweeps.results._collect import SweepFolder
from gfdyn.sweeps.results._store import Store
from gfdyn.sweeps.spec._plan import make_plan, resolved


_NAMES = (
    "<!--<script>",
    "</script><b>bold</b>",
    "]]>&lt;&amp; & \u2028 \u2029 '\"`",
    "/* TABLE */ null",
    "\\u003c \ud800",
)


@pytest.fixture(scope="module", params=_NAMES)
def named(request, tmp_path_factory):
    """The report of a sweep of this name, all of whose points failed for that reason."""
    out = tmp_path_factory.mktemp("named")
    spec = resolved(sweeps.Spec(name="sweep", axes={"net.seed": (0, 1)}))
    store = Store(out)
    store.create()
    sweeps.write_spec(spec, store.spec)
    for digest in make_plan(spec).places:
        store.write_failure(digest, request.param)
    versions = {"gfdyn": request.param, "jax": "1", "jaxlib": "1"}
    manifest = {"versions": versions, "before": ["unknown"]}
    store.manifest.write_text(json.dumps(manifest))
    # Not all of them are texts of TOML.
    with pytest.MonkeyPatch.context() as patch:
        folder = SweepFolder(out)
        object.__setattr__(folder.spec, "name", request.param)
        patch.setattr(_page, "SweepFolder", lambda _: folder)
        patch.setattr(_page, "format_spec", lambda spec: spec.name)
        return request.param, sweeps.report(out)


class _Text(HTMLParser):
    """The texts of a page, by the element that they are in."""

    def __init__(self):
        super().__init__()
        self.tags, self.texts, self.comments = [], {}, []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        tag = self.tags[-1] if self.tags else ""
        self.texts[tag] = self.texts.get(tag, "") + data

    def handle_comment(self, data):
        self.comments.append(data)


def test_no_name_ends_the_script_or_begins_another(named, page):
    """Nor is there a letter in the table that means anything in HTML."""
    name, path = named
    text = path.read_text(encoding="utf-8")
    (line,) = [row for row in text.split("\n") if row.startswith("const table = ")]
    assert not set("<>&\u2028\u2029") & set(line)
    found, plain = _Text(), _Text()
    found.feed(text)
    plain.feed(page.read_text())
    assert found.tags == plain.tags and found.comments == plain.comments == []
    assert found.texts["script"].count("const table") == 1
    assert found.texts["title"].strip() == "Sweep"
    table = table_of(path)
    shown = _shown(name)
    assert table["name"] == table["spec"] == shown
    assert [entry["reason"] for entry in table["points"]] == [shown, shown]


def test_names_are_shown_letter_by_letter(named, tmp_path):
    name, path = named
    shown = run_in_node(path, tmp_path, _SHOWN)
    name = _shown(name)
    assert shown["title"] == shown["name"] == f"Sweep {name}"
    assert shown["spec"] == name
    assert shown["failures"].count(f"<td>{html.escape(name)}</td>") == 2
    assert shown["mixture"] == f"Of mixed versions: unknown versions; gfdyn {name}, {_REST}"


def _shown(name):
    """Half of a surrogate pair is no letter: the sign for that stands in its place."""
    return name.replace("\ud800", "\ufffd")


_REST = "jax 1, jaxlib 1"
_SHOWN = """
const seen = (id) => elements[id].innerHTML || elements[id].textContent;
console.log(JSON.stringify({ title: document.title, ...Object.fromEntries(
  ["name", "spec", "failures", "mixture"].map((id) => [id, seen(id)])) }));
"""


def test_a_report_without_a_manifest(folder, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(folder, out)
    (out / "manifest.json").unlink()
    assert table_of(sweeps.report(out))["manifest"] == ""


@needs_chromium
def test_any_name_opens_in_a_browser(named):
    name, path = named
    done = dump_dom(path)
    assert done.returncode == 0
    assert f"Sweep {html.escape(_shown(name), quote=False)}" in done.stdout
