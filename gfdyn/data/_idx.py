"""MNIST as it lies on disk: keras' npz archive, or the IDX files of LeCun et al.

Plain numpy, read by `gf.data.mnist`. Nothing here reaches for the network.
"""

import gzip
import math
import os
import zipfile
import zlib
from pathlib import Path

import numpy as np


_TRAIN_IMAGES = "train-images-idx3-ubyte"
_GZIP_MAGIC = b"\x1f\x8b"


def read_mnist(
    path: str | os.PathLike, labels: str | os.PathLike | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The images, (N, pixels), and their labels, (N,), as integers.

    Args:
        path: an `.npz` archive, a directory with the training files, or the IDX file of
            the images.
        labels: the IDX file of the labels; None for the one beside the images.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if a file is damaged, or holds something other than 8-bit images and
            as many labels.
    """
    path = _existing("path", path)
    if path.suffix == ".npz":
        if labels is not None:
            raise ValueError(
                f"labels={str(labels)!r} goes with IDX files only: {path} brings its "
                "own labels, leave the argument out."
            )
        images, classes = _read_npz(path)
    else:
        image_file = _either(path, _TRAIN_IMAGES) if path.is_dir() else path
        if labels is None:
            label_file = _labels_beside(image_file)
        else:
            label_file = _existing("labels", labels)
        images, classes = _read_idx(image_file, ndim=3), _read_idx(label_file, ndim=1)
    _check_pair(path, images, classes)
    return images.reshape(len(images), math.prod(images.shape[1:])), classes


def _existing(name: str, path: str | os.PathLike) -> Path:
    if not Path(path).exists():
        raise FileNotFoundError(
            f"{name}={str(path)!r} does not exist: pass an .npz archive or IDX files "
            "that are on disk already, nothing is downloaded."
        )
    return Path(path)


def _either(folder: Path, name: str) -> Path:
    """The file of this name in the folder, compressed or not."""
    plain = name.removesuffix(".gz")
    for candidate in (folder / plain, folder / f"{plain}.gz"):
        if candidate.is_file():
            return candidate
    raise FileNotFoundError(
        f"{folder} holds neither {plain} nor {plain}.gz: put one of them there."
    )


def _labels_beside(images: Path) -> Path:
    if "images-idx3" not in images.name:
        raise ValueError(
            f"{images} has no 'images-idx3' in its name, from which to guess that of "
            "the labels: pass labels=."
        )
    return _either(images.parent, images.name.replace("images-idx3", "labels-idx1"))


def _read_npz(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The arrays (x_train, y_train), or else (x, y), of an archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
        for x, y in (("x_train", "y_train"), ("x", "y")):
            if x in names and y in names:
                with np.load(path, allow_pickle=False) as arrays:
                    return arrays[x], arrays[y]
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, OSError) as error:
        raise ValueError(
            f"{path} is not a sound npz archive of plain arrays ({error}): replace it."
        ) from error
    raise ValueError(
        f"{path} must hold the arrays x_train and y_train, or x and y, and holds "
        f"{sorted(names)}."
    )


def _read_idx(path: Path, ndim: int) -> np.ndarray:
    """The array of unsigned bytes in an IDX file.

    Four bytes 0, 0, 8 (for unsigned bytes), ndim; then ndim big-endian 32-bit sizes;
    then the entries, last index fastest.
    """
    content = _uncompressed(path)
    magic, start = bytes([0, 0, 8, ndim]), 4 + 4 * ndim
    if content[:4] != magic:
        raise ValueError(
            f"{path} must start with {magic.hex(' ')}, the mark of an IDX file of "
            f"{ndim}-dimensional unsigned bytes, and starts with "
            f"{content[:4].hex(' ') or 'nothing: it is empty'}."
        )
    if len(content) < start:
        raise ValueError(
            f"{path} is truncated: its IDX header takes {start} bytes, found "
            f"{len(content)}."
        )
    shape = np.frombuffer(content, ">u4", count=ndim, offset=4).tolist()
    if len(content) != start + math.prod(shape):
        raise ValueError(
            f"{path} is truncated or padded: an array of shape {tuple(shape)} takes "
            f"{start + math.prod(shape)} bytes with its header, found {len(content)}."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _uncompressed(path: Path) -> bytes:
    content = path.read_bytes()
    if not content.startswith(_GZIP_MAGIC):
        return content
    try:
        return gzip.decompress(content)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ValueError(
            f"{path} is not a sound gzip file ({error}): replace it."
        ) from error


def _check_pair(path: Path, images: np.ndarray, labels: np.ndarray) -> None:
    for name, array in (("images", images), ("labels", labels)):
        if not np.issubdtype(array.dtype, np.integer):
            raise ValueError(
                f"{path}: the {name} must be integers as in MNIST, found {array.dtype}."
            )
    if images.ndim < 2 or images.size == 0:
        raise ValueError(
            f"{path}: the images must have shape (samples, rows, columns) with none of "
            f"them zero, found {images.shape}."
        )
    if labels.shape != images.shape[:1]:
        raise ValueError(
            f"{path}: {len(images)} images need as many labels, found an array of "
            f"shape {labels.shape}."
        )
    if images.min() < 0 or images.max() > 255:
        raise ValueError(
            f"{path}: pixels must lie in 0..255, found {images.min()}..{images.max()}."
        )
