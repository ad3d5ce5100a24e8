"""All rows of the table, part by part."""

from of_engines import ROWS as OF_ENGINES
from of_files import ROWS as OF_FILES
from of_solver import ROWS as OF_SOLVER
from of_the_command import ROWS as OF_THE_COMMAND
from table import Row


ROWS: tuple[Row, ...] = (*OF_SOLVER, *OF_FILES, *OF_THE_COMMAND, *OF_ENGINES)
