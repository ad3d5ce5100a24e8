"""Specs of sweeps: round trips, what is wrong with bad ones, axes, and the plan."""

import dataclasses
import itertools
import json
import tomllib
from typing import Any

import numpy as np
import pytest

import gfdyn as gf
from gfdyn.sweeps.spec._plan import make_plan, resolved


S = gf.sweeps

FULL = S.Spec(
    name="all fields",
    problem=S.ProblemSettings(data="digits", samples=20, loss="squared", seed=3),
    net=S.NetSettings(depth=4, width=7, activation="leaky_relu(0.1)", init_scale=1e-30),
    run=S.FlowSettings(t1=np.inf, clock="arc", weight_decay=1e-3, risk_below=0.1),
    solver=S.SolverSettings(name="adaptive", rtol=1e-5, max_steps=10),
    records=("risk", "accuracy"),
    max_saves=8,
    weights="final",
    dtype="float32",
    axes={
        "net.init_scale": S.log(10.0, 1e-30, 5),
        "net.width": (4, 8),
        "problem.samples": (10, 20),
        "net.seed": S.seeds(3),
    },
    zip=(("net.width", "problem.samples"),),
    engine=S.EngineSettings(name="dask", address="tcp://host:8786", lanes=6, devices=2),
)
SPECS = {
    "defaults": S.Spec(),
    "flow": FULL,
    "escape": dataclasses.replace(FULL, run=S.EscapeSettings(settled=0.0, tau_max=7.0)),
    "descend": dataclasses.replace(FULL, run=S.DescentSettings(batch_size=5)),
}


@pytest.mark.parametrize("as_json", [False, True], ids=["TOML", "JSON"])
@pytest.mark.parametrize("name", SPECS)
def test_round_trip(name, as_json, tmp_path):
    spec = SPECS[name]
    text = S.format_spec(spec, as_json)
    assert S.parse_spec(text, as_json) == spec
    # The text is what other readers of the format read, too.
    table = json.loads(text) if as_json else tomllib.loads(text)
    assert table["net"]["depth"] == spec.net.depth
    file = tmp_path / ("spec.json" if as_json else "spec.toml")
    S.write_spec(spec, file)
    assert S.read_spec(file) == spec
    assert list(S.read_spec(file).axes) == list(spec.axes)


SHORT = """
name = "short"
records = ["risk"]
zip = [["net.width", "problem.samples"]]

[run]
kind = "flow"
t1 = 3

[axes]
net.init_scale = {log = [100, 0.01], num = 5}
net.width = {linear = [4, 8], num = 3}
problem.samples = [10, 12, 14]
net.seed = {seeds = 2}
"""


def test_short_forms():
    spec = S.parse_spec(SHORT)
    assert spec.run == S.FlowSettings(t1=3.0)
    np.testing.assert_allclose(spec.axes["net.init_scale"], [100, 10, 1, 0.1, 0.01])
    assert spec.axes["net.init_scale"][0] == 100 and spec.axes["net.init_scale"][-1] == 0.01
    assert spec.axes["net.width"] == (4, 6, 8)
    assert spec.axes["net.seed"] == (0, 1)
    assert len(spec) == 5 * 3 * 2


WRONG_AXES: dict[str, tuple[Any, ...]] = {
    "first=0.0 must be positive and finite": (S.log, 0.0, 1.0, 3),
    "last=-1.0 must be positive and finite": (S.log, 1.0, -1.0, 3),
    "last=inf must be positive and finite": (S.log, 1.0, np.inf, 3),
    "num=0 must be 1 or more": (S.log, 1.0, 0.1, 0),
    "first=nan must be finite": (S.linear, np.nan, 1.0, 3),
    "last=inf must be finite": (S.linear, 0.0, np.inf, 3),
    "num=-1 must be 1 or more": (S.linear, 0.0, 1.0, -1),
    "num=2.5 is no whole number": (S.linear, 0.0, 1.0, 2.5),
    "num=-3 must be 1 or more": (S.seeds, -3),
    "num=True is no whole number": (S.seeds, True),
    "first='a' is no number": (S.linear, "a", 1.0, 3),
}


@pytest.mark.parametrize("message", WRONG_AXES)
def test_axes_of_wrong_numbers(message, unhooked):
    make, *numbers = WRONG_AXES[message]
    with pytest.raises((TypeError, ValueError), match=message):
        make(*numbers)


def test_an_axis_of_one_value():
    assert S.log(10.0, 0.1, 1) == S.linear(10.0, 0.1, 1) == (10.0,)
    assert S.seeds(1) == (0,)


def test_points_cross_axes_and_zip_groups():
    spec = S.parse_spec(SHORT)
    seen = [
        (point.net.init_scale, point.net.width, point.problem.samples, point.net.seed)
        for _, point in spec.points()
    ]
    expected = [
        (scale, width, samples, seed)
        for scale in spec.axes["net.init_scale"]
        for width, samples in [(4, 10), (6, 12), (8, 14)]
        for seed in (0, 1)
    ]
    assert seen == expected
    places = [place for place, _ in spec.points()]
    assert places == list(itertools.product(range(5), range(3), range(2)))


BAD = {
    'nmae = "a"': "nmae is unknown; did you mean 'name'?",
    "name = 3": "name=3 must be a text.",
    'name = ""': "name='' must not be empty.",
    'records = ["riks"]': "records[0]='riks' is no diagnostic; did you mean 'risk'?",
    'records = "risk"': "records='risk' must be a list.",
    "max_saves = 7": "max_saves=7 must be an even number of at least 4.",
    'weights = "last"': "weights='last'; Known: none, final, all.",
    'dtype = "float46"': "dtype='float46'; did you mean 'float64'?",
    "net = 3": "net=3 must be a table, as [net].",
    'net.wdith = "3"': "net.wdith is unknown; did you mean 'width'?",
    "net.depth = 0": "net.depth=0 must be 1 or more.",
    "net.depth = 2.5": "net.depth=2.5 must be a whole number",
    "net.depth = true": "net.depth=True must be a whole number",
    "net.width = -1": "net.width=-1 must be 1 or more.",
    "net.seed = nan": "net.seed=nan must be a whole number",
    'net.activation = "rleu"': "net.activation='rleu' is unknown; use 'relu'",
    "net.init_scale = 0": "net.init_scale=0.0 must be positive and finite",
    'net.init_scale = "small"': "net.init_scale='small' must be a number",
    'problem.data = "digit"': "problem.data='digit'; did you mean 'digits'?",
    'problem.loss = "square"': "problem.loss='square'; did you mean 'squared'?",
    "problem.samples = 0": "problem.samples=0 must be 1 or more.",
    'problem = {data = "circle", samples = 5}': "problem.samples=5 must be even",
    'problem = {data = "digits", samples = 1798}': "problem.samples=1798 exceeds the 1797",
    'problem.data = "mnist"': "problem.path=None names no file; mnist is read from disk",
    "problem.seed = 0.5": "problem.seed=0.5 must be a whole number",
    "problem.teacher = [3]": "problem.teacher=[3] must list 2 or more",
    "problem.teacher = [3, 1.5]": "problem.teacher[1]=1.5 must be a whole number",
    "problem.path = 3": "problem.path=3 must be a text.",
    'run.kind = "descent"': "run.kind='descent'; did you mean 'descend'?",
    'run = {kind = "flow", settled = 0.1}': "run.settled is unknown;",
    "run.localized = 1": "run.localized=1 must be true or false.",
    "run.settled = 1.5": "run.settled=1.5 must lie in [0, 1); 0 for none.",
    "run.settled = 0": "run.tau_max=inf never ends; give it, or run.settled",
    "run.tau_max = 0": "run.tau_max=0.0 must be positive.",
    "run.risk_below = -1.0": "run.risk_below=-1.0 must be positive.",
    'run = {kind = "flow", t1 = -1}': "run.t1=-1.0 must be positive.",
    'run = {kind = "flow", t1 = inf}': "run.t1=inf never ends;",
    'run = {kind = "flow", clock = "tau"}': "run.clock='tau'; Known: physical, loss, arc.",
    'run = {kind = "flow", weight_decay = -1}': "run.weight_decay=-1.0 must be 0 or more",
    'run = {kind = "descend", learning_rate = 0}': "run.learning_rate=0.0 must be positive",
    'run = {kind = "descend", norm_scaled = 2}': "run.norm_scaled=2 must be true or false.",
    'run = {kind = "descend", steps = 0}': "run.steps=0 must be 1 or more.",
    'run = {kind = "descend", batch_size = 0}': "run.batch_size=0 must be 1 or more.",
    'run = {kind = "descend", momentum = 1}': "run.momentum=1.0 must lie in [0, 1).",
    'run = {kind = "descend", weight_decay = inf}': "run.weight_decay=inf must be 0",
    'solver.name = "exat"': "solver.name='exat'; did you mean 'exact'?",
    "solver.rtol = 1": "solver.rtol=1.0 must lie between 0 and 1.",
    "solver.max_steps = 0": "solver.max_steps=0 must be 1 or more.",
    'engine.name = "ray"': "engine.name='ray'; Known: serial, processes, dask.",
    "engine.workers = 0": "engine.workers=0 must be 1 or more.",
    "engine.lanes = 0": "engine.lanes=0 must be 1 or more.",
    "engine = {lanes = 3, devices = 2}": "engine.lanes=3 must be a multiple of engine.dev",
    "engine.devices = 0": "engine.devices=0 must be 1 or more.",
    "engine.gpus = -1": "engine.gpus=-1 must be 0 or more.",
    "engine.memory_gb = 0": "engine.memory_gb=0.0 must be positive.",
    "engine.checkpoint_every = 0": "engine.checkpoint_every=0 must be 1 or more.",
    'engine.address = "tcp://a"': "engine.address='tcp://a' is of a Dask cluster, but",
    'engine = {name = "dask", address = "tcp://a"}': "engine.address='tcp://a' must be tcp"
    "://HOST:PORT, as tcp://10.0.0.1:8786.",
    'engine = {name = "dask", address = "http://a:1"}': "engine.address='http://a:1' must",
    "engine.wait = 0": "engine.wait=0.0 must be positive and finite: seconds.",
    "engine.wait = inf": "engine.wait=inf must be positive and finite: seconds.",
    "axes = 3": "axes=3 must be a table, as [axes].",
    "axes.nte.depth = [1]": "axes.nte is unknown; did you mean 'net'?",
    "axes.net.deph = [1]": "axes.net.deph is unknown; did you mean 'depth'?",
    "axes.net.depth = 3": "axes.net.depth=3 must be a list of values, or a table",
    "axes.net.depth = []": "axes.net.depth=[] is empty; give values.",
    "axes.net.depth = [2, 3, 2]": "axes.net.depth[2]=2 is there twice.",
    'axes.net.depth = [2, "3"]': "axes.net.depth[1]='3' must be a whole number",
    "axes.net.depth = [0]": "net.depth=0 must be 1 or more.",
    "axes.net.depth = {lgo = [1, 2], num = 2}": "is no list of values; did you mean 'log'?",
    "axes.net.depth = {log = [1, 2]}": "axes.net.depth={'log': [1, 2]} lacks num.",
    "axes.net.depth = {log = [1], num = 2}": "axes.net.depth.log=[1.0] must be [first, la",
    "axes.net.depth = {log = [0, 2], num = 2}": "axes.net.depth.log=[0.0, 2.0] must be pos",
    "axes.net.depth = {linear = [1, inf], num = 2}": "axes.net.depth.linear=[1.0, inf] mus",
    "axes.net.depth = {linear = [1, 2], nmu = 2}": "axes.net.depth.nmu is unknown; did you",
    "axes.net.seed = {seeds = 0}": "axes.net.seed.seeds=0 must be 1 or more.",
    'zip = [["net.depth"]]': "zip=['net.depth'] must name two axes or more.",
    'zip = [["net.depth", "net.seed"]]': "zip.net.depth is unknown;",
    'zip = [["net.depth", "net.width"]]\naxes.net = {depth = [1, 2], width = [3]}': (
        "zip={'net.depth': 2, 'net.width': 1} must have as many values each."
    ),
    'zip = [["net.depth", "net.seed"], ["net.seed", "net.depth"]]\n'
    "axes.net = {depth = [1], seed = [1]}": "zip='net.seed' is in two groups.",
}


@pytest.mark.parametrize("number", range(len(BAD)), ids=[text[:40] for text in BAD])
def test_bad_specs(number, unhooked):
    text, message = list(BAD.items())[number]
    with pytest.raises(ValueError) as error:
        S.parse_spec(text)
    assert message in str(error.value)


def test_every_field_has_a_bad_value():
    """Of each section the table above has each field, and of the spec itself."""
    sections = {
        "": S.Spec,
        "problem.": S.ProblemSettings,
        "net.": S.NetSettings,
        "solver.": S.SolverSettings,
        "engine.": S.EngineSettings,
    }
    sections |= dict.fromkeys(["run."], S.EscapeSettings)
    runs = [S.EscapeSettings, S.FlowSettings, S.DescentSettings]
    names = [
        f"{at}{f.name}" for at, cls in sections.items() for f in dataclasses.fields(cls)
    ]
    names += [f"run.{field.name}" for run in runs for field in dataclasses.fields(run)]
    told = " ".join([*BAD, *BAD.values()])
    sectioned = {"problem", "run", "solver", "engine"}
    assert [name for name in set(names) - sectioned if name not in told] == []


def test_bad_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file; give the TOML file"):
        S.read_spec(tmp_path / "none.toml")
    file = tmp_path / "bad.toml"
    file.write_text("name = ")
    with pytest.raises(ValueError, match="bad.toml: "):
        S.read_spec(file)


def test_points_must_make_sense_together():
    spec = S.Spec(
        problem=S.ProblemSettings(samples=8),
        run=S.DescentSettings(batch_size=8),
        axes={"problem.samples": (8, 4)},
    )
    with pytest.raises(ValueError, match="run.batch_size=8 exceeds the 4 samples"):
        make_plan(resolved(spec))


def test_the_plan_groups_by_shape():
    """Values share a program, shapes do not; the longest runs come first."""
    spec = S.Spec(
        axes={
            "net.init_scale": (1.0, 1e-9),
            "net.depth": (2, 3),
            "solver.rtol": (1e-3, 1e-6),
            "run.settled": (0.1, 1e-3),
            "net.seed": (0, 1, 2),
        },
        engine=S.EngineSettings(lanes=5),
    )
    plan = make_plan(resolved(spec))
    assert len(plan.places) == len(spec) == 48
    for batch in plan.batches:
        assert len({point.net.depth for point in batch.points}) == 1
        assert batch.recipe.lanes == 5
    sizes = [len(batch.points) for batch in plan.batches]
    assert sizes == [5, 5, 5, 5, 4] * 2
    first = plan.batches[0].points[0]
    assert (first.net.init_scale, first.solver.rtol) == (1e-9, 1e-6)


def test_absent_switches_have_a_program_of_their_own():
    spec = S.Spec(
        run=S.FlowSettings(),
        axes={"run.weight_decay": (0.0, 0.1, 0.2)},
        engine=S.EngineSettings(lanes=3),
    )
    sizes = [len(batch.points) for batch in make_plan(resolved(spec)).batches]
    assert sorted(sizes) == [1, 2]


def test_lanes_fit_in_the_memory():
    wide = S.Spec(
        net=S.NetSettings(width=1000),
        axes={"net.seed": S.seeds(64)},
        engine=S.EngineSettings(lanes=64, memory_gb=20.0),
    )
    # Three matrices of some million weights: 257 saves and some twenty copies.
    least = (10 + 1000 + 1) * 1000 * 8 * 257
    lanes = make_plan(resolved(wide)).batches[0].recipe.lanes
    assert 20e9 / (1.3 * least) <= lanes <= 20e9 / least


@pytest.mark.parametrize(
    "address",
    ["tcp://10.0.0.1:8786", "node-7.cluster:8786", "tls://node:1", "tcp://[fe80::1]:8786"],
)
def test_addresses_of_clusters(address):
    assert S.EngineSettings(name="dask", address=address).address == address
