"""What a benchmark leaves behind."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from _machine import machine

from gfdyn._atomic import replace_atomically


def write_report(file: Path, packages: Sequence[str], **content: Any) -> None:
    """Write the content as JSON behind the machine and the versions of the packages."""
    report = {"machine": machine(packages), **content}
    text = json.dumps(report, indent=1) + "\n"
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_atomically(file, partial(Path.write_text, data=text))
