"""Files that are complete or not there."""

import hashlib
import os
import platform
import re
import secrets
import sys
from collections.abc import Callable
from pathlib import Path


# Of a temporary file: its name later, the machine and process (not of older versions'), and
# what tells it from others.
_TEMPORARY = re.compile(r"\..*?(?:\.([0-9a-f]{8})-(\d+))?\.[0-9a-f]{16}")


def replace_atomically(path: str | os.PathLike, write: Callable[[Path], object]) -> None:
    """Have `write(temporary path)` make a file, then rename it to `path`.

    Killed at any moment, it leaves either the old file or the new one, and a temporary file
    at most, which `remove_orphans` removes.
    """
    path = Path(path)
    token = f"{_machine()}-{os.getpid()}.{secrets.token_hex(8)}"
    # Not tempfile's: its files are for their owner's eyes only.
    temporary = path.with_name(f".{path.name}.{token}")
    try:
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def remove_orphans(folder: Path) -> None:
    """Remove the temporary files of processes of this machine that are no more."""
    for file in folder.iterdir() if folder.is_dir() else ():
        found = _TEMPORARY.fullmatch(file.name)
        if found and found[1] == _machine() and not _is_alive(int(found[2])):
            file.unlink(missing_ok=True)


def is_temporary(file: Path) -> bool:
    """Whether `replace_atomically` made it, to rename it later."""
    return _TEMPORARY.fullmatch(file.name) is not None


def _machine() -> str:
    """A short name of this machine that any file may bear."""
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def _is_alive(process: int) -> bool:
    # Windows would end the process that is asked.
    if sys.platform == "win32":
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
