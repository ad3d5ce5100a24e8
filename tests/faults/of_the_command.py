"""Faults of the command: no rows so far."""

from table import Row


ROWS: tuple[Row, ...] = ()
