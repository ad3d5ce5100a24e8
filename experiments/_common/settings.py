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
    default: T | None = None,
) -> T:
    """The settings given; with `--smoke`, those of a trial instead.

    Args:
        kind: the dataclass of settings, of which one is `smoke`.
        description: what `--help` says.
        smoke: the settings that a trial changes.
        arguments: those of the command line; `sys.argv` if None.
        default: what holds where nothing is given, if not what the dataclass says.
    """
    given: dict[str, Any] = {} if default is None else {"default": default}
    settings: Any = tyro.cli(kind, description=description, args=arguments, **given)
    return dataclasses.replace(settings, **smoke) if settings.smoke else settings
