"""Faults of the command."""

from table import Row


ROWS: tuple[Row, ...] = ()
