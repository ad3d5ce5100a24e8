"""Faults of files."""

from table import Row


ROWS: tuple[Row, ...] = ()
