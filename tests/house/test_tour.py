"""What `help(gf)` and `dir(gf.losses)` show. That the tour runs is its doctest."""

import inspect
import re

import gfdyn as gf


ROOM = re.compile(r"^    (\w+)  +(\w+(?:, \w+)*)$", re.MULTILINE)


def public(module):
    # The type checker of the tests leaves its name everywhere.
    names = set(dir(module)) - {"jaxtyping"}
    return {name for name in names if not name.startswith("_")}


def test_the_tour_leads_through_all_rooms_to_what_is_there():
    rooms = {name: names.split(", ") for name, names in ROOM.findall(gf.__doc__ or "")}
    found = {name for name in public(gf) if inspect.ismodule(getattr(gf, name))}
    # Kinks are inside of solvers, which import them; what problem, run and descent hold is
    # in gf itself; plotting and the command are loaded by who asks for them.
    inside = {"kinks", "problem", "run", "descent", "plotting", "cli"}
    assert set(rooms) == found - inside
    for room, names in rooms.items():
        assert set(names) <= public(getattr(gf, room)), room
        assert len(names) >= 2


def test_the_tour_is_short():
    assert len((gf.__doc__ or "").splitlines()) <= 50


def test_losses_hold_losses_only():
    """Losses, their classes, and functions that make one."""
    for name in public(gf.losses):
        thing = getattr(gf.losses, name)
        if inspect.isfunction(thing):
            thing = inspect.signature(thing).return_annotation
        kind = thing if inspect.isclass(thing) else type(thing)
        assert issubclass(kind, gf.losses.AbstractLoss), name
