"""Files that are complete or not there."""

import contextlib
import errno
import hashlib
import os
import platform
import re
import secrets
import sys
from collections.abc import Callable
from pathlib import Path


# What helps where a file cannot be written.
_REMEDIES = {
    errno.ENOENT: "there is no folder {folder}; make it first, or give another path",
    errno.ENOTDIR: "{folder} is no folder; give a path in one",
    errno.EISDIR: "it is a folder; give the path of a file in it",
    errno.ENOSPC: "the disk is full; free space there, or give a path on another disk",
    errno.EDQUOT: "your quota is used up; free space there, or give a path on another disk",
    errno.EFBIG: "files of this size are not allowed there (ulimit -f, or the disk's own "
    "limit); lift it, or give a path on another disk",
    errno.EACCES: "you may not write to {folder}; ask for the right to, or give a path in "
    "another folder",
    errno.EROFS: "{folder} is read-only; give a path in another folder",
    errno.ENAMETOOLONG: "its name is too long; give a shorter one",
}
_REMEDIES[errno.EPERM] = _REMEDIES[errno.EACCES]

# Of a temporary file: its name later, the machine and process (not of older versions'), and
# what tells it from others.
_TEMPORARY = re.compile(r"\..*?(?:\.([0-9a-f]{8})-(\d+))?\.[0-9a-f]{16}")


def replace_atomically(path: str | os.PathLike, write: Callable[[Path], object]) -> None:
    """Have `write(temporary path)` make a file, then rename it to `path`.

    Killed at any moment, it leaves either the old file or the new one, and a temporary file
    at most, which `remove_orphans` removes.

    Raises:
        OSError: if it cannot be written; says why, and what helps. The old file stays.
    """
    path = Path(path)
    token = f"{_machine()}-{os.getpid()}.{secrets.token_hex(8)}"
    # Not tempfile's: its files are for their owner's eyes only.
    temporary = path.with_name(f".{path.name}.{token}")
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        # So that a wrong place shows here, and not in what writes.
        temporary.touch()
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise _with_remedy(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _with_remedy(path: Path, error: OSError) -> OSError:
    """An error of the same kind and number that says what helps."""
    reason = error.strerror or str(error)
    if error.errno in _REMEDIES:
        why = _REMEDIES[error.errno].format(folder=path.parent)
    else:
        why = f"{reason}; check the disk, or give another path"
    of_kind = type(OSError(error.errno, reason))
    named = of_kind(f"{path} was not written: {why}.")
    named.errno = error.errno
    return named


def remove_orphans(folder: Path) -> None:
    """Remove the temporary files of processes of this machine that are no more."""
    # Where it may not look or remove, there is nothing that it must do.
    with contextlib.suppress(OSError):
        for file in folder.iterdir():
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
