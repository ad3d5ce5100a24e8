"""The last bytes of a file: a checksum over all before, looked at before HDF5 reads any.

HDF5 may read on for ever in a file of which a bit has flipped.
"""

import hashlib
from io import BytesIO
from pathlib import Path


_MARK = b"\ngfdyn sha-256 "
_LENGTH = len(_MARK) + hashlib.sha256().digest_size * 2
_CHUNK = 1 << 20


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
        while left > 0 and (chunk := file.read(min(left, _CHUNK))):
            digest.update(chunk)
            left -= len(chunk)
        end = file.read()
    sealed = left == 0 and end.startswith(_MARK)
    return not sealed or end == _MARK + digest.hexdigest().encode()
