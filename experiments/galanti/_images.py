"""Images for Galanti & Poggio's figures: digits, or MNIST and CIFAR-10 from disk."""

import dataclasses
import zipfile
from pathlib import Path
from typing import Literal

import jax
import numpy as np

import gfdyn as gf


Loss = Literal["cross_entropy", "squared"]

# Of CIFAR-10's binary version: a byte for the class, then three colours of 32 × 32 pixels.
_RECORD = 1 + 3 * 32 * 32
_KEY = 0


@dataclasses.dataclass(frozen=True)
class Images:
    """Images to train on, and others to test on."""

    train: gf.Problem
    test: gf.Problem

    @property
    def samples(self) -> int:
        """The number of images to train on."""
        return self.train.data.num_samples


def load_images(
    data: Literal["digits", "mnist", "cifar10"],
    path: Path | None,
    samples: int | None,
    loss: Loss = "cross_entropy",
) -> Images:
    """The first of the shuffled images, standardised, in float32; the others to test on.

    Of digits 1408 of 1797 to train on, of others five sixths, if `samples` is None. MNIST's
    and CIFAR-10's own test files are not read.

    Raises:
        ValueError: without the path of MNIST or CIFAR-10, or with more samples than images.
    """
    key = jax.random.key(_KEY)
    if data == "digits":
        pool = gf.data.digits(key=key, dtype="float32")
    elif path is None:
        raise ValueError(f"--data {data} needs --path FILE; nothing is downloaded.")
    elif data == "mnist":
        pool = gf.data.mnist(path, key=key, dtype="float32")
    else:
        pixels, classes = read_cifar10(path)
        order = jax.random.permutation(key, len(pixels))
        x = gf.data.standardise(pixels[order] / np.float32(255))
        pool = gf.data.Dataset(x, gf.data.one_hot(classes[order], 10, "float32"))
    total = pool.num_samples
    default = 1408 if data == "digits" else total * 5 // 6
    samples = default if samples is None else samples
    if not 0 < samples < total:
        raise ValueError(
            f"samples={samples} must be less than the {total} images of {data}, and "
            "positive: the others are to test on."
        )
    parts = (slice(0, samples), slice(samples, total))
    of = getattr(gf.losses, loss)
    return Images(*(gf.Problem(pool.subset(part), of) for part in parts))


def read_cifar10(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """CIFAR-10's training images, (N, 3072), and classes: of the binary version's folder,
    of one of its `data_batch_*.bin`, or of an npz with x_train and y_train. No pickle.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if a file is damaged or of another kind.
    """
    if path.suffix == ".npz" and path.exists():
        try:
            with np.load(path, allow_pickle=False) as arrays:
                pixels, classes = arrays["x_train"], arrays["y_train"]
        except (KeyError, ValueError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path}: no npz of x_train and y_train: {error}.") from error
        return pixels.reshape(len(pixels), -1), classes.reshape(-1)
    files = sorted(path.glob("data_batch_*.bin")) if path.is_dir() else [path]
    if not files or not files[0].exists():
        raise FileNotFoundError(
            f"{path} holds no data_batch_*.bin of CIFAR-10's binary version; give its "
            "folder, one such file, or an npz."
        )
    records = [np.frombuffer(file.read_bytes(), np.uint8) for file in files]
    for file, record in zip(files, records, strict=True):
        if not record.size or record.size % _RECORD or record[::_RECORD].max() > 9:
            raise ValueError(
                f"{file} has {record.size} bytes, not images of {_RECORD} each that begin "
                "with their class 0 to 9; it is damaged, or not CIFAR-10's binary version."
            )
    table = np.concatenate(records).reshape(-1, _RECORD)
    return table[:, 1:], table[:, 0]
