"""Data sets against closed forms in plain numpy, and damaged files against messages."""

import gzip
import itertools
import struct

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


# --- Dataset --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "convert",
    [np.asarray, jnp.asarray, lambda v: v.tolist()],
    ids=["np", "jnp", "list"],
)
def test_dataset_keeps_values_whatever_the_container(convert):
    x = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    y = np.array([[-1.0], [0.5], [2.0]])
    dataset = data.Dataset(convert(x), convert(y))
    assert isinstance(dataset.x, jax.Array) and isinstance(dataset.y, jax.Array)
    np.testing.assert_array_equal(dataset.x, x)
    np.testing.assert_array_equal(dataset.y, y)
    assert dataset.x.dtype == dataset.y.dtype == DEFAULT
    assert (dataset.num_samples, dataset.dim) == (3, 2)


def test_float_targets_of_one_dimension_become_a_column():
    dataset = data.Dataset([[1.0], [2.0]], [3.0, 4.0])
    np.testing.assert_array_equal(dataset.y, [[3.0], [4.0]])


def test_integer_labels_stay_integers():
    dataset = data.Dataset([[1.0], [2.0]], [1, -1])
    assert dataset.y.shape == (2,)
    assert jnp.issubdtype(dataset.y.dtype, jnp.integer)
    np.testing.assert_array_equal(dataset.y, [1, -1])


def test_integer_matrices_take_the_dtype_of_x():
    dataset = data.Dataset(np.ones((2, 1), np.float32), np.array([[1, 0], [0, 1]]))
    assert dataset.y.dtype == jnp.float32
    np.testing.assert_array_equal(dataset.y, [[1, 0], [0, 1]])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_arrays_keep_their_dtype_and_lists_adopt_it(dtype):
    array = jnp.ones((2, 1), dtype)
    for x, y in [(array, array), (array, [[0.5], [1.0]]), ([[0.5], [1.0]], array)]:
        dataset = data.Dataset(x, y)
        assert dataset.x.dtype == dataset.y.dtype == dtype
    assert data.Dataset(np.array([[1], [2]]), array).x.dtype == dtype


def test_integers_alone_become_the_default_float():
    dataset = data.Dataset([[1], [2]], np.array([[1], [2]]))
    assert dataset.x.dtype == dataset.y.dtype == DEFAULT


def test_differing_floating_dtypes_are_refused():
    x, y = np.ones((2, 1), np.float32), np.ones((2, 1), np.float16)
    with pytest.raises(ValueError, match="x is float32 but y is float16: cast one"):
        data.Dataset(x, y)


def test_numpy_float64_counts_as_what_jax_makes_of_it():
    x, y = np.ones((2, 1), np.float32), np.ones((2, 1), np.float64)
    if X64:
        with pytest.raises(ValueError, match="x is float32 but y is float64"):
            data.Dataset(x, y)
    else:
        assert data.Dataset(x, y).y.dtype == jnp.float32


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([1.0, 2.0], [1.0, 2.0], r"x has shape \(2,\), must be \(samples, features\)"),
        (np.ones((2, 1, 1)), [1.0, 2.0], r"x has shape \(2, 1, 1\)"),
        (np.ones((0, 3)), np.ones((0, 1)), r"x has shape \(0, 3\).*at least one"),
        (np.ones((3, 0)), np.ones((3, 1)), r"x has shape \(3, 0\).*at least one"),
        (np.ones((3, 2)), np.ones((2, 1)), "x has 3 samples but y has 2"),
        (np.ones((3, 2)), [0, 1], "x has 3 samples but y has 2"),
        (np.ones((3, 2)), 1.0, r"y has shape \(\), must be \(samples, outputs\)"),
        (np.ones((3, 2)), np.ones((3, 1, 1)), r"y has shape \(3, 1, 1\)"),
        (np.ones((3, 2)), np.ones((3, 0)), "at least one output"),
        (np.ones((1, 1), bool), [1.0], "x has dtype bool, must be real"),
        (np.ones((1, 1)), np.ones(1, complex), "y has dtype complex.*, must be real"),
        ([[1.0], [2.0, 3.0]], [1.0, 2.0], "x is not array-like .*: pass an array"),
        ([["pixel"]], [1.0], "x is not array-like"),
        ([[2**70]], [1.0], "x is not array-like"),
    ],
)
def test_dataset_refuses(x, y, message):
    with pytest.raises(ValueError, match=message):
        data.Dataset(x, y)


def test_non_finite_entries_are_counted_and_located():
    x = np.ones((6, 3))
    x[4, 2], x[5, 0], x[5, 1] = np.nan, np.inf, -np.inf
    message = r"x has 3 non-finite entries, the first at sample 4, feature 2 \(nan\): "
    with pytest.raises(ValueError, match=message):
        data.Dataset(x, np.ones(6))
    y = np.ones((6, 2))
    y[3, 1] = -np.inf
    message = r"y has 1 non-finite entry, the first at sample 3, output 1 \(-inf\): "
    with pytest.raises(ValueError, match=message):
        data.Dataset(np.ones((6, 3)), y)


def test_dataset_inside_jit_from_tracers_and_from_constants():
    constant = jnp.array([[1.0, 2.0]])

    @jax.jit
    def total(x):
        first, second = data.Dataset(x, x), data.Dataset(constant, [1])
        return first.subset([0]).x.sum() + second.x.sum() + data.standardise(x).sum()

    np.testing.assert_allclose(total(jnp.array([[1.0, 3.0]])), 7.0, rtol=1e-6)


def test_shapes_are_checked_while_tracing():
    with pytest.raises(ValueError, match="x has 2 samples but y has 3"):
        jax.jit(data.Dataset)(jnp.ones((2, 1)), jnp.ones((3, 1)))


def test_datasets_pass_through_jit_and_vmap():
    stacked = jax.vmap(lambda k: data.gaussian(4, 3, key=k))(jr.split(jr.key(0), 2))
    assert stacked.x.shape == (2, 4, 3) and stacked.y.shape == (2, 4, 1)
    doubled = jax.jit(lambda d: jax.tree.map(lambda a: 2 * a, d))(data.circle(4))
    np.testing.assert_array_equal(doubled.x, 2 * data.circle(4).x)


@pytest.mark.parametrize(
    ("index", "rows"),
    [
        (slice(1, None, 2), [1, 3]),
        ([2, 0, -1], [2, 0, 3]),
        (np.array([True, False, False, True]), [0, 3]),
        (jnp.array([3, 3]), [3, 3]),
    ],
    ids=["slice", "list", "mask", "jax"],
)
@pytest.mark.parametrize("labels", [False, True])
def test_subset(index, rows, labels):
    x, y = np.arange(8.0).reshape(4, 2), np.arange(4) if labels else np.arange(4.0)
    subset = data.Dataset(x, y).subset(index)
    np.testing.assert_array_equal(subset.x, x[rows])
    np.testing.assert_array_equal(subset.y.ravel(), y[rows])
    assert subset.y.ndim == (1 if labels else 2)


def test_subset_of_traced_indices():
    dataset = data.circle(8)
    subset = jax.jit(lambda index: dataset.subset(index))(jnp.array([2, 5]))
    np.testing.assert_array_equal(subset.x, dataset.x[jnp.array([2, 5])])


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ([0, 4], "does not select from 4 samples .*out of bounds"),
        (np.array([True, False]), "does not select from 4 samples .*boolean"),
        ([0.5], "does not select from 4 samples"),
        (3, r"index=3 selects an array of shape \(\)"),
        (slice(4, None), r"selects an array of shape \(0,\).*at least one sample"),
    ],
)
def test_subset_refuses(index, message):
    with pytest.raises(ValueError, match=message):
        data.circle(4).subset(index)


def test_astype_converts_floats_only():
    labelled = data.Dataset(np.ones((2, 1)), [0, 1])
    assert labelled.astype("float16").x.dtype == jnp.float16
    assert labelled.astype("float16").y.dtype == labelled.y.dtype
    assert data.circle(4).astype(jnp.float16).y.dtype == jnp.float16
    with pytest.raises(ValueError, match="dtype=int32 must be a floating one"):
        labelled.astype("int32")


# --- Encodings ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [None, "float16", "float32"])
def test_one_hot(dtype):
    encoded = data.one_hot(np.array([2, 0, 1, 2], np.uint8), 4, dtype)
    expected = [[0, 0, 1, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]
    np.testing.assert_array_equal(encoded, expected)
    assert encoded.dtype == (dtype or DEFAULT)


def test_one_hot_infers_the_number_of_classes():
    np.testing.assert_array_equal(data.one_hot([1, 0]), [[0, 1], [1, 0]])


def test_one_hot_while_tracing():
    encoded = jax.jit(lambda c: data.one_hot(c, 3))(jnp.array([2, 0]))
    np.testing.assert_array_equal(encoded, [[0, 0, 1], [1, 0, 0]])
    with pytest.raises(ValueError, match="num_classes=None cannot be read off traced"):
        jax.jit(data.one_hot)(jnp.array([2, 0]))


@pytest.mark.parametrize(
    ("labels", "num_classes", "message"),
    [
        ([0, 3, 4], 3, r"lie in 0\.\.2, and 2 do not, the first at sample 1 \(3\)"),
        ([0, -1], None, r"lie in 0\.\.0, and 1 do not, the first at sample 1 \(-1\)"),
        ([0.0, 1.0], 2, "labels must be integers of shape .*received float"),
        ([[0], [1]], 2, r"received int.* of shape \(2, 1\)"),
        ([], 2, r"of shape \(0,\)"),
        ([0], 0, "num_classes=0 must be an integer of at least 1"),
    ],
)
def test_one_hot_refuses(labels, num_classes, message):
    with pytest.raises(ValueError, match=message):
        data.one_hot(labels, num_classes)


def test_standardise_uses_one_mean_and_one_deviation():
    x = np.array([[1.0, 2.0], [3.0, 6.0]])  # mean 3, deviation sqrt(14/4)
    expected = np.array([[-2.0, -1.0], [0.0, 3.0]]) / np.sqrt(3.5)
    np.testing.assert_allclose(data.standardise(x), expected, rtol=1e-6)
    np.testing.assert_allclose(data.standardise(x.astype(int)), expected, rtol=1e-6)
    assert data.standardise(x.astype(np.float32)).dtype == jnp.float32


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.full((3, 2), 0.1, np.float32), "x is 0.1.* throughout, with no deviation"),
        ([[1.0, np.nan]], r"x has 1 non-finite entry.*feature 1 \(nan\)"),
        ([1.0, 2.0], r"x has shape \(2,\)"),
    ],
)
def test_standardise_refuses(x, message):
    with pytest.raises(ValueError, match=message):
        data.standardise(x)


# --- Generators -----------------------------------------------------------------------


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


# --- Digits ---------------------------------------------------------------------------


def test_digits_have_the_published_statistics():
    raw = data.digits(standardised=False)
    assert raw.x.shape == (1797, 64) and raw.y.shape == (1797, 10)
    np.testing.assert_allclose(raw.x.mean(), 0.30526, atol=5e-6)
    np.testing.assert_allclose(raw.x.std(), 0.37605, atol=5e-6)
    standard = data.digits()
    np.testing.assert_allclose(standard.x.mean(), 0.0, atol=1e-6)
    np.testing.assert_allclose(standard.x.std(), 1.0, rtol=1e-6)
    np.testing.assert_array_equal(raw.y.sum(axis=1), np.ones(1797))
    np.testing.assert_array_equal(jnp.argmax(raw.y[:10], axis=1), np.arange(10))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_digits_are_those_of_scikit_learn_to_the_bit(dtype):
    from sklearn.datasets import load_digits

    pixels, classes = map(np.asarray, load_digits(return_X_y=True))
    ours = data.digits(standardised=False, dtype=dtype)
    np.testing.assert_array_equal(ours.x, (pixels / 16).astype(dtype))
    np.testing.assert_array_equal(ours.y, np.eye(10, dtype=dtype)[classes])
    standard = data.standardise(pixels / 16).astype(dtype)
    np.testing.assert_array_equal(data.digits(dtype=dtype).x, standard)


def test_fewer_digits_keep_the_statistics_of_all():
    everything, few = data.digits(), data.digits(7)
    np.testing.assert_array_equal(few.x, everything.x[:7])
    np.testing.assert_array_equal(few.y, everything.y[:7])


def test_digits_drawn_by_key_are_distinct_and_labelled():
    everything, drawn = data.digits(), data.digits(300, key=jr.key(0))
    labels = {
        np.asarray(x).tobytes(): int(jnp.argmax(y))
        for x, y in zip(np.asarray(everything.x), everything.y, strict=True)
    }
    assert len(labels) == 1797
    rows = [np.asarray(x).tobytes() for x in np.asarray(drawn.x)]
    assert len(set(rows)) == 300
    assert [labels[row] for row in rows] == jnp.argmax(drawn.y, axis=1).tolist()
    assert np.any(drawn.x != everything.x[:300])
    assert np.any(drawn.x != data.digits(300, key=jr.key(1)).x)


@pytest.mark.parametrize("n", [0, -1, 1798])
def test_digits_out_of_range(n):
    with pytest.raises(ValueError, match=rf"n={n} must be an integer in 1\.\.1797"):
        data.digits(n)


# --- MNIST ----------------------------------------------------------------------------

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 4, 3), dtype=np.uint8)
LABELS = np.array([3, 9, 0, 1, 1, 5], np.uint8)
IMAGE_FILE, LABEL_FILE = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def idx(array):
    """The bytes of an IDX file, as specified with the data set."""
    header = struct.pack(">BBBB", 0, 0, 8, array.ndim)
    return header + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write(folder, images=None, labels=None, names=(IMAGE_FILE, LABEL_FILE)):
    (folder / names[0]).write_bytes(idx(IMAGES) if images is None else images)
    (folder / names[1]).write_bytes(idx(LABELS) if labels is None else labels)
    return folder


def check(dataset):
    x = IMAGES.reshape(6, 12) / 255
    x = (x - x.mean()) / x.std()
    np.testing.assert_allclose(dataset.x, x, rtol=2e-5, atol=1e-6)
    np.testing.assert_array_equal(dataset.y, np.eye(10)[LABELS])


@pytest.mark.parametrize(
    ("pack_images", "pack_labels"),
    list(itertools.product([bytes, gzip.compress], repeat=2)),
    ids=["plain-plain", "plain-gz", "gz-plain", "gz-gz"],
)
@pytest.mark.parametrize("suffixes", [("", ""), (".gz", ".gz"), ("", ".gz")])
def test_mnist_idx_whatever_the_name_says(tmp_path, pack_images, pack_labels, suffixes):
    image_file, label_file = IMAGE_FILE + suffixes[0], LABEL_FILE + suffixes[1]
    packed = pack_images(idx(IMAGES)), pack_labels(idx(LABELS))
    write(tmp_path, *packed, names=(image_file, label_file))
    check(data.mnist(tmp_path))
    check(data.mnist(str(tmp_path / image_file)))
    check(data.mnist(tmp_path / image_file, labels=tmp_path / label_file))


def test_mnist_of_other_names(tmp_path):
    write(tmp_path, names=("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"))
    check(data.mnist(tmp_path / "t10k-images-idx3-ubyte"))
    write(tmp_path, names=("pictures", "classes"))
    check(data.mnist(tmp_path / "pictures", labels=tmp_path / "classes"))
    with pytest.raises(ValueError, match="pictures has no 'images-idx3'.*pass labels="):
        data.mnist(tmp_path / "pictures")


@pytest.mark.parametrize("names", [("x_train", "y_train"), ("x", "y")])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_mnist_npz(tmp_path, names, save):
    save(tmp_path / "m.npz", **dict(zip(names, (IMAGES, LABELS), strict=True)))
    check(data.mnist(tmp_path / "m.npz"))


def test_mnist_npz_prefers_the_training_set(tmp_path):
    x, y = IMAGES[::-1], LABELS[::-1]
    np.savez(tmp_path / "m.npz", x=x, y=y, x_train=IMAGES, y_train=LABELS)
    check(data.mnist(tmp_path / "m.npz"))


def test_mnist_options(tmp_path):
    write(tmp_path)
    raw = data.mnist(tmp_path, standardised=False, dtype="float32")
    assert raw.x.dtype == raw.y.dtype == jnp.float32
    np.testing.assert_allclose(raw.x, IMAGES.reshape(6, 12) / 255, rtol=1e-6)
    everything = data.mnist(tmp_path)
    np.testing.assert_array_equal(data.mnist(tmp_path, 2).x, everything.x[:2])
    shuffled = data.mnist(tmp_path, key=jr.key(0))
    same = np.asarray(shuffled.x)[:, None] == np.asarray(everything.x)[None]
    order = same.all(axis=2).argmax(axis=1).tolist()
    assert sorted(order) == list(range(6)) and order != list(range(6))
    np.testing.assert_array_equal(shuffled.y, everything.y[jnp.array(order)])
    with pytest.raises(ValueError, match=r"n=7 must be an integer in 1\.\.6"):
        data.mnist(tmp_path, 7)


@pytest.mark.parametrize("length", range(len(idx(LABELS))))
def test_mnist_truncated_anywhere(tmp_path, length):
    write(tmp_path, labels=idx(LABELS)[:length])
    if length < 4:
        message = f"{LABEL_FILE} must start with 00 00 08 01, .* and starts with "
    elif length < 8:
        message = f"{LABEL_FILE} is truncated: its .* takes 8 bytes, found {length}"
    else:
        message = rf"{LABEL_FILE} is truncated .*\(6,\) takes 14 .*found {length}\."
    with pytest.raises(ValueError, match=message):
        data.mnist(tmp_path)


@pytest.mark.parametrize("length", [0, 3, 15, 16, 50])
def test_mnist_truncated_images(tmp_path, length):
    write(tmp_path, images=idx(IMAGES)[:length])
    with pytest.raises(ValueError, match=f"{IMAGE_FILE} .*(nothing|00 00 08|{length})"):
        data.mnist(tmp_path)


def test_mnist_padded(tmp_path):
    write(tmp_path, images=idx(IMAGES) + b"\0")
    with pytest.raises(ValueError, match="padded.*takes 88 bytes .*found 89"):
        data.mnist(tmp_path)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (idx(LABELS), "00 00 08 01"),
        (b"\0\0\x0d\x03" + idx(IMAGES)[4:], "00 00 0d 03"),
        (b"<html>", "3c 68 74 6d"),
        (b"", "nothing: it is empty"),
    ],
    ids=["labels", "floats", "html", "empty"],
)
def test_mnist_wrong_magic(tmp_path, content, found):
    write(tmp_path, images=content)
    message = f"{IMAGE_FILE} must start with 00 00 08 03, .*3-dim.* starts with {found}"
    with pytest.raises(ValueError, match=message):
        data.mnist(tmp_path)


@pytest.mark.parametrize("length", [2, 9, 20, -9, -4, -1])
def test_mnist_truncated_gzip(tmp_path, length):
    write(tmp_path, images=gzip.compress(idx(IMAGES))[:length])
    with pytest.raises(ValueError, match=f"{IMAGE_FILE} is not a sound gzip file"):
        data.mnist(tmp_path)


@pytest.mark.parametrize("position", [2, 12, 40, -6, -2])
def test_mnist_corrupt_gzip(tmp_path, position):
    content = bytearray(gzip.compress(idx(IMAGES)))
    content[position] ^= 0xFF
    write(tmp_path, images=bytes(content))
    with pytest.raises(ValueError, match=f"{IMAGE_FILE} is not a sound gzip file"):
        data.mnist(tmp_path)


def test_mnist_mismatched_counts(tmp_path):
    write(tmp_path, labels=idx(LABELS[:5]))
    message = r"6 images need as many labels, found an array of shape \(5,\)"
    with pytest.raises(ValueError, match=message):
        data.mnist(tmp_path)
    np.savez(tmp_path / "m.npz", x=IMAGES, y=LABELS[:5])
    with pytest.raises(ValueError, match=message):
        data.mnist(tmp_path / "m.npz")


def test_mnist_without_images(tmp_path):
    write(tmp_path, idx(IMAGES[:0]), idx(LABELS[:0]))
    with pytest.raises(ValueError, match=r"none of them zero, found \(0, 4, 3\)"):
        data.mnist(tmp_path)


def test_mnist_labels_beyond_nine(tmp_path):
    write(tmp_path, labels=idx(np.array([0, 1, 2, 12, 3, 10], np.uint8)))
    message = r"lie in 0\.\.9, and 2 do not, the first at sample 3 \(12\)"
    with pytest.raises(ValueError, match=message):
        data.mnist(tmp_path)


def test_mnist_missing_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="path='.*nowhere' does not exist"):
        data.mnist(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=f"neither {IMAGE_FILE} nor .*gz"):
        data.mnist(tmp_path)
    (tmp_path / IMAGE_FILE).write_bytes(idx(IMAGES))
    for path in (tmp_path, tmp_path / IMAGE_FILE):
        with pytest.raises(FileNotFoundError, match=f"neither {LABEL_FILE} nor .*gz"):
            data.mnist(path)
    with pytest.raises(FileNotFoundError, match="labels='.*gone' does not exist"):
        data.mnist(tmp_path, labels=tmp_path / "gone")


@pytest.mark.parametrize("damage", ["garbage", "empty", "truncated", "flipped"])
def test_mnist_corrupt_npz(tmp_path, damage):
    path = tmp_path / "m.npz"
    np.savez(path, x_train=IMAGES, y_train=LABELS)
    content = path.read_bytes()
    start = content.index(IMAGES.tobytes())
    flipped = content[:start] + bytes([content[start] ^ 1]) + content[start + 1 :]
    damaged = {
        "garbage": b"garbage",
        "empty": b"",
        "truncated": content[:-30],
        "flipped": flipped,
    }
    path.write_bytes(damaged[damage])
    with pytest.raises(ValueError, match="m.npz is not a sound npz archive"):
        data.mnist(path)


def test_mnist_npz_never_unpickles(tmp_path):
    np.savez(tmp_path / "m.npz", x=np.array([object()]), y=LABELS)
    with pytest.raises(ValueError, match="m.npz is not a sound npz archive .*pickle"):
        data.mnist(tmp_path / "m.npz")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x_train": IMAGES, "z": LABELS}, r"x and y, and holds \['x_train', 'z'\]"),
        ({"x": IMAGES / 255, "y": LABELS}, "images must be integers.*found float64"),
        ({"x": IMAGES, "y": LABELS / 1}, "labels must be integers.*found float64"),
        ({"x": IMAGES.astype(int) * 9, "y": LABELS}, r"pixels must lie in 0\.\.255"),
        ({"x": IMAGES.astype(int) - 300, "y": LABELS}, r"pixels must lie .*found -"),
        ({"x": LABELS, "y": LABELS}, r"images must have shape .*found \(6,\)"),
        ({"x": IMAGES, "y": np.eye(10, dtype=int)[LABELS]}, r"found .*shape \(6, 10\)"),
    ],
)
def test_mnist_npz_with_other_contents(tmp_path, arrays, message):
    np.savez(tmp_path / "m.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        data.mnist(tmp_path / "m.npz")


def test_mnist_npz_brings_its_own_labels(tmp_path):
    np.savez(write(tmp_path) / "m.npz", x=IMAGES, y=LABELS)
    with pytest.raises(ValueError, match="labels='.*' goes with IDX files only"):
        data.mnist(tmp_path / "m.npz", labels=tmp_path / LABEL_FILE)
