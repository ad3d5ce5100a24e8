"""The report of a sweep, on points written by hand whose numbers are known."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from page_cases import (
    DEPTHS,
    LEAVES,
    LOST,
    MISSING,
    SEEDS,
    dump_dom,
    needs_chromium,
    run_in_node,
    table_of,
)

from gfdyn import sweeps
from gfdyn.sweeps.results._store import Store
from gfdyn.sweeps.spec import _toml as sweeps_toml
from gfdyn.sweeps.spec._plan import resolved


def test_what_it_shows_is_what_the_points_hold(page):
    table = table_of(page)
    assert [axis["name"] for axis in table["axes"]] == ["init_scale", "depth", "seed"]
    assert table["total"] == 12
    entries = {tuple(entry["place"]): entry for entry in table["points"]}
    assert set(entries) == {
        (i, j, k) for i in range(3) for j in range(2) for k in range(2)
    } - {MISSING}
    assert entries[LOST] == {
        "place": list(LOST),
        "result": "error",
        "reason": "its worker was killed",
    }
    for place, entry in entries.items():
        if place == LOST:
            continue
        numbers = entry["numbers"]
        # The plateau ends where the risk has fallen by a fiftieth of its range.
        leaves = LEAVES * (place[2] + 1) + 0.02 * 0.999
        assert numbers["escape, tau"] == pytest.approx(leaves, rel=1e-5)
        assert numbers["escape, log t"] == pytest.approx(2 * leaves, rel=1e-5)
        assert numbers["plateaus"] == 2
        assert numbers["final risk"] == 1e-3
        for layer in range(1, DEPTHS[place[1]] + 1):
            rank = numbers[f"stable rank of W{layer} at the end"]
            assert rank == pytest.approx(1 + 0.1 * place[0])
        curves = entry["curves"]
        assert list(curves) == ["tau", "log t", "risk", "stable rank"]
        assert len(curves["risk"]) == 200
        assert curves["tau"][0] == 0 and curves["tau"][-1] == 40
        # −∞ is no number of JSON.
        assert curves["log t"][0] is None


class _Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.links, self.open, self.scripts = [], [], 0

    def handle_starttag(self, tag, attrs):
        self.links += [value for name, value in attrs if name in ("src", "href")]
        self.scripts += tag == "script"
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_it_is_one_sound_file_and_loads_nothing(page):
    parser = _Links()
    parser.feed(page.read_text())
    assert parser.open == [] and parser.links == [] and parser.scripts == 1


_LOOK = """
const first = elements.runs.innerHTML;
const cell = { dataset: { i: "2", j: "1" } };
elements.maps.handlers.click({ target: { closest: () => cell } });
const text = (id) => elements[id].innerHTML || elements[id].textContent;
const shownOf = Object.fromEntries(Object.keys(elements).map((id) => [id, text(id)]));
elements.down.handlers.change({ target: { value: "2" } });
console.log(JSON.stringify({ ...shownOf, first, title: document.title,
  bySeed: elements.maps.innerHTML }));
"""


def test_its_script_draws_maps_curves_and_tables(page, tmp_path):
    shown = run_in_node(page, tmp_path, _LOOK)
    assert shown["title"] == "Sweep by </script> hand"
    assert shown["progress"] == "11 of 12 points"
    # Scales across and depths down: 6 cells a map, a map for each number.
    maps = shown["maps"].split("<figure>")[1:]
    names = re.findall("<figcaption>(.*?)</figcaption>", "".join(maps))
    assert "escape, log t" in names and "stable rank of W3 at the end" in names
    for name, drawn in zip(names, maps, strict=True):
        assert drawn.count("<rect") == 6
        # The third layer is there at depth 3 alone.
        assert drawn.count(">×</text>") == (3 if "W3" in name else 0)
    escape = maps[names.index("escape, tau")]
    # Medians over seeds; where one is lost or missing, the other one's.
    assert escape.count(">7.52</text>") == 4 and escape.count(">5.02</text>") == 2
    assert "<td>max_steps_reached</td>" in shown["failures"]
    assert "&lt;took&gt; too many steps" in shown["failures"]
    assert "its worker was killed" in shown["failures"]
    for result, number in ("successful", 9), ("max_steps_reached", 1), ("missing", 1):
        row = f'<td>{result}</td><td class="number">{number}</td>'
        assert row in shown["outcomes"]
    # The cell of the first point is open; then the one at scale 1e-6 and depth 3.
    assert "max_steps_reached" in shown["first"]
    assert shown["cell-title"] == "Trajectories, init_scale 1.0e-6, depth 3"
    assert shown["runs"].count("<tr>") == 1 + 2
    # The risk against both clocks, and three stable ranks; a line for each seed
    plots = shown["plots"].split("<figure>")[1:]
    assert len(plots) == 5 and all(plot.count("<polyline") == 2 for plot in plots)
    # With seeds down: 3 × 2 cells, a median over depths each.
    assert shown["bySeed"].split("<figure>")[1].count("<rect") == 6


_TICKS = """
const ranges = RANGES;
console.log(JSON.stringify(ranges.map(([low, high]) => {
  const axis = scale([low, high]);
  return { log: axis.log, ticks: ticks(axis), labels: ticks(axis).map(tickLabel) };
})));
"""
RANGES = [
    [0.0, 40.0],
    [3.7, 41.3],
    [-2.5e-4, 1.9e-4],
    [1e5, 1.0001e5],
    [1234567.0, 2345678.0],
    [0.98, 1.02],
    [-171.3, 12.0],
    [0.05, 7.0],
    [3e-3, 0.9],
    [2e-30, 5.0],
    [1e-280, 1e-3],
    [2.0, 2.0],
]


def test_ticks_are_round_numbers_told_apart(page, tmp_path):
    found = run_in_node(page, tmp_path, _TICKS.replace("RANGES", json.dumps(RANGES)))
    for (low, high), axis in zip(RANGES, found, strict=True):
        at = np.array([tick["at"] for tick in axis["ticks"]])
        assert axis["log"] == (low > 0 and high > 100 * low)
        if low == high:
            assert at.tolist() == [low]
            continue
        slack = 1e-9 * (high - low)
        assert (at >= low - slack).all() and (at <= high + slack).all()
        assert 2 <= len(at) <= 6 and (np.diff(at) > 0).all()
        places = np.log10(at) if axis["log"] else at
        step = places[1] - places[0]
        np.testing.assert_allclose(np.diff(places), step, rtol=1e-6)
        mantissa = step / 10 ** np.floor(np.log10(step) + 1e-9)
        assert np.abs(mantissa - np.array([1, 2, 5])).min() < 1e-6
        np.testing.assert_allclose(places / step, np.round(places / step), atol=1e-6)
        if axis["log"]:
            # Powers of ten, written as such
            assert all(label.startswith("10<tspan") for label in axis["labels"])
            powers = [
                float(re.sub("<.*?>", "", label)[2:].replace("−", "-"))
                for label in axis["labels"]
            ]
            np.testing.assert_allclose(powers, places, atol=1e-9)
        else:
            # What is written is where it stands.
            np.testing.assert_allclose(
                [float(label) for label in axis["labels"]], at, rtol=1e-12, atol=1e-15
            )
        assert len(set(axis["labels"])) == len(at)
        # Side by side, in letters of 11 pixels, they fit below an axis of 274.
        letters = [len(re.sub("<.*?>", "", label)) for label in axis["labels"]]
        assert 6 * sum(letters) < 274 and 6 * max(letters) < 56 - 6


_GROUPS = """
const choose = (i, j) => {
  const cell = { dataset: { i: String(i), j: String(j) } };
  elements.maps.handlers.click({ target: { closest: () => cell } });
  return { legend: elements.legend.innerHTML, plots: elements.plots.innerHTML };
};
const seeds = choose(2, 1);
elements.down.handlers.change({ target: { value: "2" } });
const depths = choose(2, 0);
console.log(JSON.stringify({ seeds, depths }));
"""


def test_seeds_share_a_colour_and_other_axes_do_not(page, tmp_path):
    found = run_in_node(page, tmp_path, _GROUPS)

    def colours(plots):
        return [re.findall('stroke="(.*?)"', plot) for plot in plots.split("<figure>")[1:]]

    def named(legend):
        swatches = re.findall(r"background:(.*?)\"></span>([^<]*)", legend)
        return {text.strip(): colour for colour, text in swatches}

    assert named(found["seeds"]["legend"]) == {"2 runs": "#004488"}
    assert {colour for plot in colours(found["seeds"]["plots"]) for colour in plot} == {
        "#004488"
    }
    # One seed, two depths
    by_depth = named(found["depths"]["legend"])
    assert by_depth == {"depth 2: 1 runs": "#004488", "depth 3: 1 runs": "#bb5566"}
    assert colours(found["depths"]["plots"])[0] == list(by_depth.values())


def test_cells_show_the_spread_over_seeds(page, tmp_path):
    shown = run_in_node(page, tmp_path, _LOOK)["maps"].split("<figure>")[1:]
    (escape,) = [drawn for drawn in shown if "<figcaption>escape, tau<" in drawn]
    # Of the six cells two have one run only.
    assert escape.count(", median of 2, 5.02 – 10</title>") == 4
    assert escape.count('class="spread"') == 4 and escape.count(">5.02 – 10</text>") == 4
    (risk,) = [drawn for drawn in shown if "<figcaption>final risk<" in drawn]
    assert 'class="spread"' not in risk


def test_the_spec_is_printed_as_it_can_be_read_again(page, folder):
    text = table_of(page)["spec"]
    assert sweeps_toml.parse_spec(text) == sweeps_toml.read_spec(Store(folder).spec)
    assert '"net.init_scale" = [1.0, 0.001, 1e-06]' in text.splitlines()
    assert '"net.seed" = [0, 1]' in text.splitlines()


@needs_chromium
def test_it_opens_in_a_browser(page):
    done = dump_dom(page)
    assert done.stdout.count("<rect") >= 6 * 9 and "<polyline" in done.stdout


def test_without_a_sweep_there_is_no_report(tmp_path):
    with pytest.raises(FileNotFoundError):
        sweeps.report(tmp_path)


def test_first_escapes_over_the_axes(folder):
    found = sweeps.escapes(folder)
    assert dict(found.sizes) == {"init_scale": 3, "depth": 2, "seed": 2}
    leaves = LEAVES * (np.array(SEEDS) + 1) + 0.02 * 0.999
    expected = np.broadcast_to(leaves, (3, 2, 2)).copy()
    expected[LOST] = expected[MISSING] = np.nan
    np.testing.assert_allclose(found["escape_time"].values, expected, rtol=1e-12)
    np.testing.assert_allclose(found["escape_log_time"].values, 2 * expected, rtol=1e-12)
    plateaus = np.where(np.isnan(expected), np.nan, 2)
    np.testing.assert_array_equal(found["num_plateaus"].values, plateaus)


def test_escapes_are_seen_in_the_risk(tmp_path):
    spec = resolved(
        sweeps.Spec(name="no risk", records=("stable_rank",), axes={"net.seed": (0,)})
    )
    Store(tmp_path).create()
    sweeps.write_spec(spec, Store(tmp_path).spec)
    with pytest.raises(ValueError, match="has no risk"):
        sweeps.escapes(tmp_path)
