"""The search for escape directions: starts, folders, failures, closed forms."""

import shutil
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from fixtures import example_one, float_dtypes, linear_problem, rows
from search_cases import OPTIMAL, RANK_ONE, problem_of

import gfdyn as gf
from gfdyn.escape import clarke_residual, search
from gfdyn.escape.search import _convergence
from gfdyn.escape.search._clusters import levels
from gfdyn.escape.search._convergence import Found, _follow, converge


# --- The search on Example 1 -----------------------------------------------------------


def find(n_starts=8, **options: Any):
    """All on one shape, of which the flow is compiled once."""
    key = jax.random.key(1)
    return search(example_one(), [2, 16, 16, 1], n_starts, key=key, batch_size=4, **options)


@pytest.fixture(scope="module")
def found():
    return find()


def test_example_one(found):
    """Two speeds, one certified to be optimal; reached on kinks, to rounding."""
    off = np.abs(np.asarray(found.speed)[:, None] - [OPTIMAL, RANK_ONE]).min(axis=1)
    assert found.converged.all() and off.max() < 1e-8
    assert found.speed.max() <= OPTIMAL + 1e-9 and (np.diff(found.speed) <= 0).all()
    optimal = np.abs(found.speed - OPTIMAL) < 1e-8
    assert optimal.any() and not optimal.all()
    np.testing.assert_array_equal(found.ranks[optimal], [[2, 1, 1]] * optimal.sum())
    np.testing.assert_allclose(found.layer_norms, 1, atol=1e-8)
    assert found.imbalance.max() < 1e-8 and found.residual.max() < 1e-8
    # On kinks in both hidden layers, where ∇L₀ = −sρ fails for σ'(0) = 0.
    assert (found.kinks[optimal] > 0).all()


def test_rows_are_what_they_say(found):
    """Every field, measured again on the nets."""
    problem = example_one()
    for i in range(len(found.speed)):
        net = rows(found.net, i)
        speed = gf.diagnostics.escape_speed(problem, net)
        np.testing.assert_allclose(found.speed[i], speed, rtol=1e-14)
        np.testing.assert_allclose(gf.nets.norm(net), np.sqrt(3), rtol=1e-14)
        norms = [np.linalg.norm(w) for w in net.weights]
        np.testing.assert_allclose(found.layer_norms[i], norms, rtol=1e-13)
        gaps = [
            np.abs(reference.neuron_balance(np.asarray(a), np.asarray(b))).max()
            for a, b in zip(net.weights[:-1], net.weights[1:], strict=True)
        ]
        np.testing.assert_allclose(found.imbalance[i], max(gaps), atol=1e-15)
        weights = [np.asarray(w) for w in net.weights]
        expected = reference.kink_count(weights, [0, 0], np.asarray(problem.data.x))
        np.testing.assert_array_equal(found.kinks[i], expected)
    np.testing.assert_allclose(
        found.residual[0], clarke_residual(problem, found.optimal, 1e-11), atol=1e-12
    )


def test_starts_are_accounted_for(found):
    """Each led to a row, at least as fast as its descent was; no row twice."""
    index, speed = np.asarray(found.index), np.asarray(found.speed)
    assert index.shape == found.descent_speeds.shape == (8,) and index.min() >= 0
    np.testing.assert_array_equal(np.bincount(index), found.count)
    np.testing.assert_array_equal(found.all_speeds, speed[index])
    assert (found.all_speeds >= found.descent_speeds - 1e-9).all()
    assert (found.all_speeds - found.descent_speeds).max() > 1e-8
    outputs = np.asarray(jax.vmap(example_one().outputs)(found.net))[..., 0]
    gaps = np.linalg.norm(outputs[:, None] - outputs[None], axis=-1)
    same = np.abs(speed[:, None] - speed[None]) < 1e-8
    np.fill_diagonal(same, False)
    assert gaps[same].min() > 1e-3 * np.linalg.norm(outputs, axis=1).min()
    success = np.mean(speed[index] > 0.45)
    assert found.success_fraction(0.45) == success and 0 < success < 1
    assert found.dead_fraction == 0.0


def test_summary(found):
    text = found.summary()
    assert "2-16-16-1 nets from 8 starts, of which 0 died" in text
    assert "0.5000000000" in text and "0.4142135624" in text and "(2,1,1)" in text
    assert len(text.splitlines()) == 4 and "not at rest" not in text


def test_neither_seed_nor_data_compile_again(found):
    compiled = programs()
    turned = gf.Dataset(example_one().data.x[::-1], example_one().data.y)
    problem = gf.Problem(turned, gf.losses.squared, reduction="sum")
    search(problem, [2, 16, 16, 1], 1, key=jax.random.key(5), batch_size=8)
    assert programs() == compiled


def programs():
    """How often the flow was compiled."""
    jitted: Any = _follow
    return jitted._cached._cache_size()


@pytest.mark.slow
def test_resumed_search_is_the_undisturbed_one(found, tmp_path):
    """To the last bit: half of the starts, then all; a part lost and computed again."""
    find(4, folder=tmp_path)
    (part,) = tmp_path.iterdir()
    written = part.stat().st_mtime_ns
    both = find(folder=tmp_path)
    assert eqx.tree_equal(both, found) and part.stat().st_mtime_ns == written
    assert sorted(f.name for f in tmp_path.iterdir()) == [
        "starts_000000_000004.nc",
        "starts_000004_000008.nc",
    ]
    assert eqx.tree_equal(find(folder=tmp_path), found)
    (tmp_path / "starts_000004_000008.nc").unlink()
    assert eqx.tree_equal(find(folder=tmp_path, progress=True), found)


# Targets of 0 pull nowhere.
NOWHERE = gf.Problem(gf.Dataset(np.eye(2), np.zeros((2, 1))), gf.losses.squared)


def test_folders_of_other_searches_are_refused(tmp_path):
    def run(problem=NOWHERE, seed=0, **options: Any):
        options = {"key": jax.random.key(seed), "folder": tmp_path / "kept"} | options
        return search(problem, [2, 3, 3, 1], 4, steps=5, **options)

    first = run()
    assert eqx.tree_equal(run(), first)
    refused: Any = (
        ({"seed": 1}, r"key=.*0, 0.* where this one has .*0, 1"),
        ({"same": 0.1}, "same=0.001 where this one has 0.1"),
        ({"rtol": 1e-7}, "rtol=1e-09 where this one has 1e-07"),
        ({"activation": "identity"}, "activation="),
        ({"problem": gf.Problem(NOWHERE.data, gf.losses.squared, "sum")}, "problem="),
    )
    for options, name in refused:
        with pytest.raises(ValueError, match=f"another search, with {name}"):
            run(**options)
    (file,) = (tmp_path / "kept").iterdir()
    whole = file.read_bytes()
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    for broken, why in ((whole[:200], ""), (flipped, ".*not those of its checksum")):
        file.write_bytes(broken)
        said = f"no readable part of a search{why}.*delete it"
        with pytest.raises(ValueError, match=said):
            run()
    shutil.rmtree(tmp_path / "kept")
    assert eqx.tree_equal(run(), first)


def test_all_starts_may_die():
    """No direction, and no NaN."""
    found = search(NOWHERE, [2, 3, 3, 1], 4, key=jax.random.key(0), steps=5)
    assert found.speed.shape == (0,) and found.net.weights[1].shape == (0, 3, 3)
    assert found.ranks.shape == (0, 3) and found.kinks.shape == (0, 2)
    assert found.dead_fraction == 1.0 and found.success_fraction(0.0) == 0.0
    np.testing.assert_array_equal(found.index, [-1] * 4)
    np.testing.assert_array_equal(found.all_speeds, np.zeros(4))
    assert "4 starts, of which 4 died" in found.summary()
    with pytest.raises(ValueError, match="all 4 starts died .* more starts or wider"):
        _ = found.optimal


# --- A flow that fails -----------------------------------------------------------------


def scripted(monkeypatch, *ends):
    """What `converge` makes, from s = 0.4, of solves that end as told, (speed, at rest);
    and what it asked for: tolerances, and the speeds where it started."""
    asked, told = [], iter([(0.4, False), *ends])

    def net_of(speed):
        return gf.nets.MLP.from_weights([np.full((1, 2), speed)])

    def follow(problem, net, limits, max_steps, kink_tolerance):
        asked.append((float(f"{limits[0]:.2g}"), float(net.weights[0][0, 0])))
        speed, rests = next(told)
        zero, none = jnp.zeros(()), jnp.zeros(0, jnp.int32)
        return Found(
            net=net_of(speed),
            outputs=jnp.zeros((8, 1)),
            speed=jnp.asarray(speed),
            converged=jnp.asarray(rests),
            residual=zero,
            ranks=none,
            layer_norms=jnp.zeros(0),
            imbalance=zero,
            kinks=none,
        )

    monkeypatch.setattr(_convergence, "_follow", follow)
    found = converge(example_one(), net_of(0.4), 1e-9, 100)
    assert next(told, None) is None, "it gave up too early"
    assert found.speed == found.net.weights[0][0, 0]
    return bool(found.converged), float(found.speed), asked[1:]


def test_flows_that_fail_are_repeated(monkeypatch):
    """The speed fell, or steps ran out: again with looser tolerances from the faster end,
    and then as tight as ever."""
    assert scripted(monkeypatch, (0.5, True)) == (True, 0.5, [(1e-9, 0.4)])
    rests = (0.5, True)
    for end, start in (((0.3, True), 0.4), ((np.nan, True), 0.4), ((0.45, False), 0.45)):
        asked = [(1e-9, 0.4), (1e-8, start), (1e-9, 0.5)]
        assert scripted(monkeypatch, end, rests, rests) == (True, 0.5, asked)
    fails = (0.3, True)
    asked = [(1e-9, 0.4), (1e-8, 0.4), (1e-7, 0.4), (1e-6, 0.4)]
    assert scripted(monkeypatch, *[fails] * 4) == (False, 0.4, asked)
    asked = [(1e-9, 0.4), (1e-8, 0.4), (1e-7, 0.4), (1e-6, 0.4), (1e-9, 0.5)]
    assert scripted(monkeypatch, *[fails] * 3, rests, fails) == (False, 0.5, asked)


def test_directions_not_at_rest_are_marked(monkeypatch, found):
    text = eqx.tree_at(lambda f: f.converged, found, ~found.converged).summary()
    assert text.count("not at rest") == 2


# --- Closed forms ----------------------------------------------------------------------


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "depth", [3, *(pytest.param(depth, marks=SLOW) for depth in (2, 5))]
)
def test_orthogonal_and_rank_one_data(depth):
    """s* = max(‖(λg)₊‖, ‖(λg)₋‖) for x_i = λ_i q_i, and ‖Gv‖ ‖u‖ for x_i = v_i u, v ≥ 0, at
    every depth."""
    widths = [5, *[4] * (depth - 1), 1]
    lengths = np.array([0.5, 1.0, 2.0, 1.5])
    data = gf.data.orthogonal(4, 5, key=jax.random.key(3), scales=lengths)
    both = lengths * -np.asarray(data.y)[:, 0] / 4
    signs = np.linalg.norm(np.maximum(both, 0)), np.linalg.norm(np.minimum(both, 0))
    problem = gf.Problem(data, gf.losses.squared)
    found = search(problem, widths, 6, key=jax.random.key(0), batch_size=6)
    np.testing.assert_allclose(found.speed[0], max(signs), rtol=0, atol=1e-10)
    if depth > 2:
        # The other sign is a local optimum.
        np.testing.assert_allclose(found.speed[1], min(signs), rtol=0, atol=1e-10)
    assert (found.ranks == 1).all() and found.residual.max() < 1e-8

    rng = np.random.default_rng(1)
    u, v, y = rng.normal(size=5), rng.uniform(0.2, 1, 4), rng.normal(size=(4, 1))
    problem = problem_of(np.outer(v, u), y)
    found = search(problem, widths, 6, key=jax.random.key(0), batch_size=6)
    expected = np.linalg.norm(v @ y / 4) * np.linalg.norm(u)
    np.testing.assert_allclose(found.speed, [expected], rtol=0, atol=1e-10)
    assert found.converged.all() and found.residual.max() < 1e-8


def test_linear_nets():
    """s* = σ₁(GXᵀ); all optima are the same function."""
    problem, a = linear_problem()
    sigma = np.linalg.svd(a, compute_uv=False)
    found = search(problem, [4, 3, 3, 2], 6, key=jax.random.key(0), activation="identity")
    np.testing.assert_allclose(found.speed, sigma[:1], rtol=0, atol=1e-10)
    assert found.count.tolist() == [6] and found.ranks.tolist() == [[1, 1, 1]]
    assert found.kinks.tolist() == [[0, 0]] and found.residual.max() < 1e-8


@pytest.mark.slow
def test_search_in_float32():
    """Two layers on the circle are at best of rank one, on kinks as well."""
    found = search(example_one(dtype=np.float32), [2, 4, 1], 4, key=jax.random.key(1))
    assert float_dtypes(found) == {np.dtype(np.float32)} and found.converged.all()
    np.testing.assert_allclose(found.speed, RANK_ONE, rtol=0, atol=1e-5)
    # The kinks within reach of this tolerance need not be those that slide.
    assert found.kinks.min() > 0 and np.median(found.residual) < 1e-3


def test_levels():
    """Falling speeds are split where they differ by more than rounding."""
    assert levels(np.zeros(0)) == []
    groups = levels(np.array([0.5, 0.5 - 1e-10, 0.4, 0.4 - 1e-9, 0.1]))
    assert [group.tolist() for group in groups] == [[0, 1], [2, 3], [4]]


def test_errors_of_the_search():
    key = jax.random.key(0)
    wrong: Any = (
        ({"n_starts": 0}, "n_starts=0 must be an integer of at least 1"),
        ({"steps": 0}, "steps=0 must be an integer"),
        ({"max_steps": 0}, "max_steps=0 must be an integer"),
        ({"batch_size": 0}, "batch_size=0 must be an integer"),
        ({"rtol": 0.1}, "rtol=0.1 must lie between 0 and 1e-3"),
        ({"same": 1.0}, "same=1.0 must be at least 0 and below 1"),
        ({"activation": "tanh"}, "activation='tanh' is unknown"),
    )
    for options, text in wrong:
        with pytest.raises(ValueError, match=text):
            search(example_one(), [2, 3, 1], key=key, **options)
    with pytest.raises(ValueError, match="net has 3 inputs but the data have 2"):
        search(example_one(), [3, 3, 1], key=key)
    with pytest.raises(ValueError, match="widths=.2. does not describe a network"):
        search(example_one(), [2], key=key)


def test_no_single_key(unhooked):
    with pytest.raises(TypeError, match="is not one random key"):
        search(example_one(), [2, 3, 1], key=jax.random.split(jax.random.key(0), 2))
