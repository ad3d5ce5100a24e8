"""Data sets drawn or made, against closed forms in NumPy."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from gfdyn import data


DEFAULT = jnp.result_type(float)
X64 = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
needs_x64 = pytest.mark.skipif(not X64, reason="float64 needs jax_enable_x64")
GENERATORS = {
    "circle": lambda **kw: data.circle(8, **kw),
    "gaussian": lambda **kw: data.gaussian(5, 3, 2, key=jr.key(0), **kw),
    "teacher": lambda **kw: data.teacher(5, [3, 4, 4, 2], key=jr.key(0), **kw),
    "orthogonal": lambda **kw: data.orthogonal(
        4, 6, 2, key=jr.key(0), scales=[1, 2, 3, 4], **kw
    ),
    "rank_one": lambda **kw: data.rank_one(5, 3, 2, key=jr.key(0), noise=0.1, **kw),
    "parallel": lambda **kw: data.parallel(5, 3, 2, key=jr.key(0), **kw),
    "antipodal": lambda **kw: data.antipodal(5, 3, 2, key=jr.key(0), **kw),
    "xor": lambda **kw: data.xor(3, **kw),
    "two_points": lambda **kw: data.two_points(2.0, 1.0, **kw),
    "digits": lambda **kw: data.digits(5, key=jr.key(0), **kw),
}
RANDOM = ["gaussian", "teacher", "orthogonal", "rank_one", "parallel", "antipodal"]
generators = pytest.mark.parametrize("name", GENERATORS)


def test_circle_is_example_1():
    dataset = data.circle(8)
    for row, j in enumerate(range(1, 9)):
        point = np.sin(2 * np.pi * j / 8), np.cos(2 * np.pi * j / 8)
        np.testing.assert_allclose(dataset.x[row], point, atol=1e-7)
    gradient = -np.asarray(dataset.y)  # of the summed squared loss at f = 0
    np.testing.assert_array_equal(gradient[:, 0], [(-1) ** j for j in range(1, 9)])
    np.testing.assert_allclose(dataset.x.T @ dataset.x, 4 * np.eye(2), atol=1e-5)
    np.testing.assert_allclose(gradient.T @ dataset.x, np.zeros((1, 2)), atol=1e-5)


def test_circle_of_two_points():
    dataset = data.circle(2)
    np.testing.assert_allclose(dataset.x, [[0, -1], [0, 1]], atol=1e-7)
    np.testing.assert_array_equal(dataset.y, [[1], [-1]])


@pytest.mark.parametrize(("n", "message"), [(7, "even"), (0, "of at least 2")])
def test_circle_refuses(n, message):
    with pytest.raises(ValueError, match=f"n={n} must be .*{message}"):
        data.circle(n)


def test_gaussian_has_standard_moments_and_independent_targets():
    dataset = data.gaussian(20_000, 2, 2, key=jr.key(1))
    joint = np.concatenate([dataset.x, dataset.y], axis=1)
    # Five standard errors, of means and of (the diagonal of) covariances.
    np.testing.assert_allclose(joint.mean(axis=0), np.zeros(4), atol=5 / 141)
    np.testing.assert_allclose(joint.T @ joint / 20_000, np.eye(4), atol=5 / 100)


def test_teacher_is_realised_by_a_network_of_its_widths():
    # In one dimension a bias-free ReLU network is linear on either side of zero.
    dataset = data.teacher(50, (1, 7, 5, 2), key=jr.key(2))
    x, y = np.asarray(dataset.x), np.asarray(dataset.y)
    slopes = y / x
    for side in (x[:, 0] > 0, x[:, 0] < 0):
        assert side.sum() > 1
        expected = np.broadcast_to(slopes[side][:1], slopes[side].shape)
        np.testing.assert_allclose(slopes[side], expected, rtol=2e-5)
    left, right = slopes[x[:, 0] < 0][0], slopes[x[:, 0] > 0][0]
    assert np.all(np.abs(left - right) > 1e-3)


def test_teacher_without_hidden_layer_is_linear_with_variance_1_over_fan_in():
    dataset = data.teacher(400, (200, 300), key=jr.key(3))
    weights, residual, _, _ = np.linalg.lstsq(
        np.asarray(dataset.x, float), np.asarray(dataset.y, float), rcond=None
    )
    assert residual.max() < 1e-6
    # 60 000 entries: the relative standard error of their variance is 0.6 %.
    assert abs(weights.var() * 200 - 1) < 0.03


def test_teacher_weights_have_variance_1_over_fan_in_in_every_layer():
    # With E sigma(z)^2 = E z^2 / 2, each hidden layer halves the mean square.
    dataset = data.teacher(200, (50, 400, 400, 300), key=jr.key(4))
    assert abs(float(jnp.mean(dataset.y**2)) * 4 - 1) < 0.15


@pytest.mark.parametrize(
    ("widths", "message"),
    [
        ((3,), r"widths=\(3,\) must name at least inputs and outputs"),
        ((3, 0, 1), r"widths\[1\]=0 must be an integer of at least 1"),
    ],
)
def test_teacher_refuses(widths, message):
    with pytest.raises(ValueError, match=message):
        data.teacher(5, widths, key=jr.key(0))


@pytest.mark.parametrize("dim", [4, 9])
def test_orthogonal_gram_matrix_is_diagonal(dim):
    scales = np.array([0.5, 1.0, 2.0, 3.0])
    x = data.orthogonal(4, dim, key=jr.key(0), scales=scales).x
    np.testing.assert_allclose(x @ x.T, np.diag(scales**2), atol=1e-5)
    x = data.orthogonal(4, dim, key=jr.key(0)).x
    np.testing.assert_allclose(x @ x.T, np.eye(4), atol=1e-5)


def test_orthogonal_directions_have_no_preferred_sign():
    keys = jr.split(jr.key(0), 400)
    rows = jax.vmap(lambda key: data.orthogonal(2, 3, key=key).x)(keys)
    # Mean of 400 entries with variance 1/3, to five standard errors.
    np.testing.assert_allclose(rows.mean(axis=0), np.zeros((2, 3)), atol=0.145)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"dim": 3}, "n=4 samples cannot be orthogonal in dim=3 dimensions: raise dim"),
        ({"dim": 0}, "dim=0 must be an integer of at least 1"),
        ({"dim": 5, "scales": [1.0]}, r"scales has shape \(1,\), must be \(4,\)"),
        ({"dim": 5, "scales": [1.0, 2.0, 0.0, 1.0]}, "positive and finite"),
        ({"dim": 5, "scales": [1.0, 2.0, np.inf, 1.0]}, "positive and finite"),
        ({"dim": 5, "scales": [1.0, 2.0, np.nan, 1.0]}, "positive and finite"),
    ],
)
def test_orthogonal_refuses(kwargs, message):
    with pytest.raises(ValueError, match=message):
        data.orthogonal(4, key=jr.key(0), **kwargs)


@pytest.mark.parametrize(
    "generate", [data.rank_one, data.parallel], ids=["rank_one", "parallel"]
)
def test_ray_is_positive_multiples_of_one_unit_vector(generate):
    x = np.asarray(generate(30, 5, key=jr.key(0)).x, float)
    lengths = np.linalg.norm(x, axis=1)
    assert lengths.min() >= 0.5 - 1e-6 and np.ptp(lengths) > 0.5
    unit = np.broadcast_to(x[0] / lengths[0], x.shape)
    np.testing.assert_allclose(x / lengths[:, None], unit, atol=1e-6)


def test_rank_one_noise_is_the_stated_perturbation():
    clean = data.rank_one(200, 100, 100, key=jr.key(0))
    noisy = data.rank_one(200, 100, 100, key=jr.key(0), noise=0.25)
    z = np.asarray(noisy.x - clean.x) / 0.25
    # 20 000 entries, five standard errors.
    assert abs(z.mean()) < 5 / 141 and abs(z.var() - 1) < 5 / 100
    assert abs((z * np.asarray(noisy.y)).mean()) < 5 / 141
    np.testing.assert_array_equal(noisy.y, clean.y)


@pytest.mark.parametrize("noise", [-0.1, np.inf, np.nan])
def test_rank_one_refuses_noise(noise):
    with pytest.raises(ValueError, match=f"noise={noise} must be finite"):
        data.rank_one(3, 2, key=jr.key(0), noise=noise)


def test_antipodal_pairs():
    dataset = data.antipodal(3, 4, key=jr.key(0))
    assert dataset.x.shape == (6, 4) and dataset.y.shape == (6, 1)
    np.testing.assert_array_equal(dataset.x[:3], -dataset.x[3:])
    assert np.linalg.matrix_rank(np.asarray(dataset.x)) == 3
    assert len(np.unique(np.abs(dataset.y))) == 6


@pytest.mark.parametrize("dim", [2, 5])
def test_xor(dim):
    dataset = data.xor(dim)
    x = np.asarray(dataset.x)
    degrees = np.rad2deg(np.arctan2(x[:, 1], x[:, 0])) % 360
    np.testing.assert_allclose(degrees, [45, 135, 225, 315], rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), np.ones(4), rtol=1e-6)
    np.testing.assert_array_equal(x[:, 2:], np.zeros((4, dim - 2)))
    np.testing.assert_array_equal(dataset.y, [[1], [-1], [1], [-1]])


def test_xor_needs_a_plane():
    with pytest.raises(ValueError, match="dim=1 must be an integer of at least 2"):
        data.xor(1)


@pytest.mark.parametrize(("phi", "psi"), [(2.0, 0.7), (np.pi, 0.0), (0.1, np.pi)])
def test_two_points_lie_at_their_angles(phi, psi):
    dataset = data.two_points(phi, psi)
    for points, angle in ((dataset.x, phi), (dataset.y, psi)):
        gram = [[1.0, np.cos(angle)], [np.cos(angle), 1.0]]
        np.testing.assert_allclose(points @ points.T, gram, atol=1e-6)
        oriented = np.linalg.det(np.asarray(points, float))
        np.testing.assert_allclose(oriented, np.sin(angle), atol=1e-6)


@pytest.mark.parametrize(
    ("phi", "psi", "message"),
    [
        (0.0, 1.0, r"angle=0.0 must lie in \(0, pi\]"),
        (3.2, 1.0, r"^angle=3.2 must lie"),
        (np.nan, 1.0, "^angle=nan must lie"),
        (120.0, 1.0, "^angle=120.0 must lie.*radians"),
        (1.0, -0.1, r"^targets_angle=-0.1 must lie in \[0, pi\]"),
    ],
)
def test_two_points_refuses(phi, psi, message):
    with pytest.raises(ValueError, match=message):
        data.two_points(phi, psi)


@generators
def test_default_dtype_is_that_of_jax(name):
    dataset = GENERATORS[name]()
    assert dataset.x.dtype == dataset.y.dtype == DEFAULT


@generators
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_dtype_is_kept(name, dtype):
    dataset = GENERATORS[name](dtype=dtype)
    assert dataset.x.dtype == dataset.y.dtype == dtype


@needs_x64
@generators
def test_one_seed_gives_the_same_data_in_both_precisions(name):
    single, double = (GENERATORS[name](dtype=t) for t in ("float32", "float64"))
    assert double.x.dtype == jnp.float64
    np.testing.assert_allclose(single.x, double.x, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(single.y, double.y, rtol=1e-5, atol=1e-6)


@needs_x64
def test_double_precision_is_exact_where_algebra_says_so():
    x = data.orthogonal(4, 6, key=jr.key(0), dtype="float64").x
    np.testing.assert_allclose(x @ x.T, np.eye(4), atol=1e-14)
    x = data.circle(8, dtype="float64").x
    np.testing.assert_allclose(jnp.sum(x**2, axis=1), np.ones(8), rtol=1e-15)


@pytest.mark.skipif(X64, reason="float64 is there")
def test_double_precision_without_x64_is_refused():
    with pytest.raises(ValueError, match="dtype=float64 needs 64-bit JAX: set jax"):
        data.circle(8, dtype="float64")


@generators
def test_integer_dtypes_are_refused(name):
    with pytest.raises(ValueError, match="dtype=int32 must be a floating one"):
        GENERATORS[name](dtype="int32")


@pytest.mark.parametrize("name", RANDOM)
def test_seeds_reproduce_and_differ(name):
    generate = getattr(data, name)
    size = [3, 2] if name == "teacher" else 3
    first, again, other = (generate(3, size, key=jr.key(k)) for k in (0, 0, 1))
    np.testing.assert_array_equal(first.x, again.x)
    np.testing.assert_array_equal(first.y, again.y)
    assert np.all(first.x != other.x) and np.all(first.y != other.y)


@pytest.mark.parametrize("name", [name for name in RANDOM if name != "teacher"])
@pytest.mark.parametrize("argument", ["n", "dim", "outputs"])
def test_sizes_are_positive(name, argument):
    sizes = {"n": 2, "dim": 3, "outputs": 1, argument: 0}
    with pytest.raises(ValueError, match=f"{argument}=0 must be an integer of"):
        getattr(data, name)(key=jr.key(0), **sizes)


@pytest.mark.parametrize("key", [0, None, jr.split(jr.key(0))], ids=["0", "None", "2"])
def test_keys_are_checked(key):
    with pytest.raises((TypeError, ValueError), match="key"):
        data.gaussian(3, 2, key=key)
