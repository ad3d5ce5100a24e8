"""All rows of the table, part by part."""

from of_engines import ROWS as OF_ENGINES
from of_files import ROWS as OF_FILES
from of_saves import ROWS as OF_SAVES
from table import Row


ROWS: tuple[Row, ...] = (*OF_FILES, *OF_SAVES, *OF_ENGINES)
