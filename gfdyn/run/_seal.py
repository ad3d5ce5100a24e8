"""The last bytes of a file: a checksum over all before, looked at before HDF5 reads any.

HDF5 may read on for ever in a file of which a bit has flipped.
"""

import hashlib
from io import BytesIO
from pathlib import Path

from ._state import GROUP


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


def is_unbroken(path: Path) -> bool:
    """Whether a file is as it was sealed, or bears no seal, as one of before or edited."""
    digest, left = hashlib.sha256(), path.stat().st_size - _LENGTH
    with path.open("rb") as file:
        while left > 0 and (chunk := file.read(min(left, _BYTES))):
            digest.update(chunk)
            left -= len(chunk)
        end = file.read()
    # In a file that was cut it is there, but not whole.
    return _MARK not in end or end == _MARK + digest.hexdigest().encode()


def announce_seal(content: BytesIO) -> None:
    """Let an HDF5 file say that there is a seal behind it: one cut off is missed."""
    import h5py

    with h5py.File(content, "r+") as file:
        file[GROUP].attrs["sealed"] = True


def lacks_its_seal(path: Path) -> bool:
    """Whether the seal of which an HDF5 file says that it is there is not."""
    import h5py

    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - _LENGTH, 0))
        sealed = file.read().startswith(_MARK)
    with h5py.File(path, "r") as opened:
        return not sealed and "sealed" in opened[GROUP].attrs
