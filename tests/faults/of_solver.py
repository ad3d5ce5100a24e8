"""Faults of solver: no rows so far."""

from table import Row


ROWS: tuple[Row, ...] = ()
