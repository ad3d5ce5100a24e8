"""Faults of engines."""

from table import Row


ROWS: tuple[Row, ...] = ()
