"""Faults of solver."""

from table import Row


ROWS: tuple[Row, ...] = ()
