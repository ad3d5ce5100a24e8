"""Claims: their verdicts, tables and files, and those on plateaus."""

import dataclasses
import json
import math

import numpy as np
import pytest
import xarray as xr


def test_verdicts(module):
    claims = module("_common.claims")

    def verdict(measured, **ends):
        return claims.Claim(statement="a", source="b", measured=measured, **ends).verdict

    assert verdict(1.0, low=1.0) == verdict(1.0, high=1.0) == "HOLDS"
    assert verdict(1.0, low=0.5, high=2.0) == verdict(-math.inf, high=0.0) == "HOLDS"
    assert verdict(0.9, low=1.0) == verdict(1.1, high=1.0) == "REFUTED"
    assert verdict(math.inf, low=0.0, high=9.0) == "REFUTED"
    assert verdict(None, low=0.0) == "NOT TESTED"
    near = claims.near("a", "b", 1.05, 1.0, 0.1)
    assert near.verdict == "HOLDS" and (near.low, near.high) == (0.9, 1.1)
    assert claims.near("a", "b", 1.2, 1.0, 0.1).verdict == "REFUTED"
    assert verdict(0.9, low=1.0, trial=True) == "NOT TESTED"
    assert verdict(1.0, low=1.0, trial=True) == "HOLDS"
    assert verdict(0.9, low=1.0, trial=True, known_false=True) == "REFUTED"


def test_claims_that_are_none(module):
    claims = module("_common.claims")

    def claim(measured, **ends):
        return claims.Claim(
            statement="the loss falls", source="b", measured=measured, **ends
        )

    with pytest.raises(ValueError, match="'the loss falls': measured=nan has no verdict"):
        claim(math.nan, low=0.0)
    with pytest.raises(ValueError, match="'the loss falls' holds whatever is measured"):
        claim(1.0)
    with pytest.raises(ValueError, match="low=2.0 and high=1.0 are no range; give low <="):
        claim(1.0, low=2.0, high=1.0)
    with pytest.raises(ValueError, match="low=nan"):
        claim(1.0, low=math.nan)


def test_table_and_json(module):
    claims = module("_common.claims")
    rows = [
        claims.Claim(
            statement="rises", source="Fig. 1", measured=np.float32(0.5), low=0.25
        ),
        claims.Claim(statement="falls", source="Fig. 2", measured=None, high=1e-3),
        claims.Claim(statement="between", source="Fig. 3", measured=3.0, low=1, high=2),
        claims.Claim(statement="none", source="Fig. 4", measured=0, low=0, high=0),
        claims.near("near", "Fig. 5", 2.0, 2.0, 1e-6),
    ]
    assert claims.table(rows).splitlines() == [
        "verdict     measured  expected   claim",
        "HOLDS            0.5  >= 0.25    rises (Fig. 1)",
        "NOT TESTED         -  <= 0.001   falls (Fig. 2)",
        "REFUTED            3  1 to 2     between (Fig. 3)",
        "HOLDS              0  0          none (Fig. 4)",
        "HOLDS              2  2 ± 1e-06  near (Fig. 5)",
    ]
    first, second, *_ = json.loads(json.dumps(claims.as_json(rows), allow_nan=False))
    assert first == {
        "claim": "rises",
        "source": "Fig. 1",
        "measured": 0.5,
        "low": 0.25,
        "high": None,
        "verdict": "HOLDS",
    }
    assert second["measured"] is None and second["verdict"] == "NOT TESTED"


def test_a_trial_refutes_nothing_but_what_is_known_false(module, tmp_path, capsys):
    claims, output = module("_common.claims"), module("_common.output")
    settings = dataclasses.make_dataclass("Settings", [("smoke", bool)])
    rows = [
        claims.Claim(statement="rises", source="b", measured=0.5, low=1.0),
        claims.held("printed", "b", 3, known_false=True),
    ]
    for smoke, first in ((False, "REFUTED"), (True, "NOT TESTED")):
        output.write(tmp_path, settings(smoke=smoke), rows, {}, {}, 0.0)
        report = json.loads((tmp_path / "claims.json").read_text("utf-8"))
        assert [row["verdict"] for row in report["claims"]] == [first, "REFUTED"]
        assert [row["measured"] for row in report["claims"]] == [0.5, 3.0]
        assert capsys.readouterr().out.count("REFUTED") == 2 - smoke


def test_rests(module):
    find = module("bantzis._image_training").find_plateaus
    # Two plateaus of 10 and 20 saves, noise upwards on the second
    second = np.full(20, 1.8)
    second[[3, 11]] += 0.5
    risk = np.concatenate([np.full(10, 2.3), [2.0], second, [1.2, 0.5, 0.05, 0.01]])
    found = find(risk)
    assert (found.first_left, found.start, found.end, found.solved) == (10, 11, 30, 33)
    assert found.rest == 19 / 23
    never = find(np.full(5, 2.3))
    assert never.first_left is never.start is never.solved is never.rest is None
    # Left, and on the second plateau to the end
    waiting = find(risk[:25])
    assert (waiting.start, waiting.end, waiting.solved, waiting.rest) == (
        11,
        24,
        None,
        None,
    )


@pytest.fixture
def saddles():
    """Two plateaus, from epoch 0 to 100 and 120 to 3000, of rank 0 and 1; then rank 2."""
    values = np.full((4, 6, 10), 0.1)
    values[1:, :, 0], values[1, 0, 1] = 3.0, 1.0
    values[2:, :, 1] = 1.5
    return xr.Dataset(
        {
            "risk": ("save", [2.3026, 1.82, 1.0, 0.01]),
            "epoch": ("save", [0.0, 2000.0, 3100.0, 6500.0]),
            "singular_values": (("save", "layer", "value"), values),
            "plateau_start": ("plateau", [0.0, 120.0]),
            "plateau_end": ("plateau", [100.0, 3000.0]),
            "plateau_save": ("plateau", [0.0, 1.0]),
            "plateau_risk": ("plateau", [2.3026, 1.82]),
            "bottleneck_rank": ("plateau", [0.0, 1.0]),
            "rank": (("plateau", "layer"), [[0.0] * 6, [2.0, *[1.0] * 5]]),
        }
    )


def verdicts(module, run):
    training = module("bantzis._image_training").Training(seeds=(3,))
    claims = module("bantzis._plateau_claims").plateau_claims(
        training, run.expand_dims(seed=[3]), 1.0
    )
    names = [claim.statement.removeprefix("scale 1, seed 3: ") for claim in claims]
    return {
        name: (claim.verdict, claim.measured)
        for name, claim in zip(names, claims, strict=True)
    }


def test_claims_on_plateaus(module, saddles):
    found = verdicts(module, saddles)
    assert {verdict for verdict, _ in found.values()} == {"HOLDS"} and len(found) == 9
    expected = {
        "largest s2/s1 of W3 to W6 on the second plateau": 0.1 / 3,
        "s2/s1 of W1 on the second plateau": 1 / 3,
        "largest s3/s2 of W3 to W5 at the end": 0.1 / 1.5,
        "smallest s2/s1 of W3 to W5 at the end": 0.5,
        "first plateau left, epoch": 100.0,
        "second plateau left, epoch": 3000.0,
    }
    for name, value in expected.items():
        assert found[name][1] == pytest.approx(value)


def test_claims_without_a_second_plateau(module, saddles):
    """What was not reached is not tested, but for what should have happened by then."""
    one = saddles.isel(save=slice(0, 1), plateau=slice(0, 1))
    assert set(verdicts(module, one).values()) == {("NOT TESTED", None)}
    lasting = saddles.isel(save=[0, 1]).assign(plateau_end=("plateau", [100.0, 2000.0]))
    found = verdicts(module, lasting)
    assert found["second plateau left, epoch"] == ("NOT TESTED", None)
    assert found["largest s3/s2 of W3 to W5 at the end"] == ("NOT TESTED", None)
    late = lasting.assign(
        epoch=("save", [0.0, 9800.0]), plateau_end=("plateau", [100.0, 9800.0])
    )
    assert verdicts(module, late)["second plateau left, epoch"] == ("REFUTED", math.inf)


def test_plateau_table(module, saddles):
    assert module("bantzis._image_training").plateau_table(
        saddles.expand_dims(seed=[3])
    ).splitlines() == [
        "seed  plateau   from epoch    to epoch      loss  ranks (bottleneck)",
        "   3        0            0         100    2.3026  0 0 0 0 0 0 (0)",
        "   3        1          120        3000    1.8200  2 1 1 1 1 1 (1)",
    ]
