"""The settings of an experiment, from the command line.

Shared by the experiments of all papers.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

import tyro


T = TypeVar("T")


def read_settings(
    kind: type[T],
    description: str | None,
    smoke: Mapping[str, Any],
    arguments: list[str] | None,
) -> T:
    """The settings given; with `--smoke`, those of a trial instead.

    Args:
        kind: the dataclass of settings, of which one is `smoke`.
        description: what `--help` says.
        smoke: the settings that a trial changes.
        arguments: those of the command line; `sys.argv` if None.
    """
    settings: Any = tyro.cli(kind, description=description, args=arguments)
    return dataclasses.replace(settings, **smoke) if settings.smoke else settings
