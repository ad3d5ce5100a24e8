"""The folder of a sweep, and what is read from it."""

from ._collect import (
    Status as Status,
    collect as collect,
    outcomes as outcomes,
    status as status,
)
from ._first_escape import escapes as escapes
from ._manifest import sign as sign, versions as versions
from ._page import report as report
from ._store import Store as Store
