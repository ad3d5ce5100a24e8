"""How what is shown of an experiment was run: below each of its figures, the commit."""

import json
import re
from pathlib import Path
from typing import Any


MEASURED = Path(__file__).resolve().parents[1] / "measured"
EXPERIMENTS = MEASURED.parents[1] / "experiments"
# An image that stands alone, of measured/PAPER/EXPERIMENT/
_FIGURE = re.compile(
    r"^!\[[^\]]*\]\((?:\.\./)*measured/(?P<name>\w+/\w+)/[\w.]+\.png\)$", re.MULTILINE
)


def experiment(name: str) -> Any:
    """What an experiment has written at full size.

    Raises:
        ValueError: if it was a trial.
    """
    measured = json.loads((MEASURED / name / "claims.json").read_text("utf-8"))
    if measured["settings"]["smoke"]:
        raise ValueError(f"{name} is a trial (smoke=True), which has no verdicts to show.")
    return measured


def module(name: str) -> str:
    """The module that made it, with its option where one makes several figures."""
    if (EXPERIMENTS / f"{name}.py").exists():
        return f"experiments.{name.replace('/', '.')}"
    paper, figure = name.split("/")
    return f"experiments.{paper}.figures --figure {figure.removeprefix('fig')}"


def stamp(name: str) -> str:
    """One line: the command, the machine, the commit and the versions."""
    measured = experiment(name)
    commit = (MEASURED / name / "commit.txt").read_text("utf-8").strip()
    packages = [f"{package} {each}" for package, each in measured["versions"].items()]
    run = f"*`python -m {module(name)}`, "
    run += f"{measured['seconds']:.0f} s on {measured['machine']}; "
    return f"{run}commit {commit}, {', '.join(packages)}.*"


def shown(markdown: str) -> set[str]:
    """The experiments of which a page has figures."""
    return {match["name"] for match in _FIGURE.finditer(markdown)}


def stamped(markdown: str) -> str:
    """The page, each figure of an experiment with its stamp below it."""
    return _FIGURE.sub(lambda match: f"{match[0]}\n\n{stamp(match['name'])}", markdown)
