"""The last bytes of a file: a checksum over all before, looked at before HDF5 reads any.

HDF5 may read on for ever in a file of which a bit has flipped.
"""

import hashlib
from io import BytesIO
from pathlib import Path


_MARK = b"\ngfdyn sha-256 "
_LENGTH = len(_MARK) + hashlib.sha256().digest_size * 2
# Read at once
_BYTES = 1 << 20


def seal(content: BytesIO) -> None:
    """Put a checksum over all of the content behind it; HDF5 does not look there."""
    with content.getbuffer() as written:
        digest = hashlib.sha256(written).hexdigest()
    content.seek(0, 2)
    content.write(_MARK + digest.encode())


def check_unbroken(path: Path) -> None:
    """Refuse a file that is not as it was sealed; one of before, or edited, bears no seal.

    Raises:
        ValueError: if its bytes are not those of its seal.
    """
    digest, left = hashlib.sha256(), path.stat().st_size - _LENGTH
    with path.open("rb") as file:
        while left > 0 and (chunk := file.read(min(left, _BYTES))):
            digest.update(chunk)
            left -= len(chunk)
        end = file.read()
    # In a file that was cut it is there, but not whole.
    if _MARK in end and end != _MARK + digest.hexdigest().encode():
        raise ValueError("its bytes are not those of its checksum")


def is_sealed(path: Path) -> bool:
    """Whether a file ends with a seal, right or wrong."""
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - _LENGTH, 0))
        return file.read().startswith(_MARK)
