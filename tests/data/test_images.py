"""Digits and MNIST: files read as they are, damaged files named."""

import gzip
import itertools
import struct

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from gfdyn import data


# --- Digits ----------------------------------------------------------------------------


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


# --- MNIST -----------------------------------------------------------------------------


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
