"""Data sets: what is refused, and how labels are encoded."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from gfdyn import data


DEFAULT = jnp.result_type(float)
X64 = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]


# --- Dataset ---------------------------------------------------------------------------


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


# --- Encodings -------------------------------------------------------------------------


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
