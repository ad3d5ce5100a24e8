"""All rows of the table, part by part."""

from of_arguments import ROWS as OF_ARGUMENTS
from of_command import ROWS as OF_COMMAND
from of_engines import ROWS as OF_ENGINES
from of_files import ROWS as OF_FILES
from of_flows import ROWS as OF_FLOWS
from of_folders import ROWS as OF_FOLDERS
from of_saves import ROWS as OF_SAVES
from of_shapes import ROWS as OF_SHAPES
from of_solver import ROWS as OF_SOLVER
from table import Row


ROWS: tuple[Row, ...] = (
    *OF_ARGUMENTS,
    *OF_SOLVER,
    *OF_SHAPES,
    *OF_FLOWS,
    *OF_FILES,
    *OF_SAVES,
    *OF_FOLDERS,
    *OF_ENGINES,
    *OF_COMMAND,
)
