"""No block of code is written twice without a reason."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations

from package_files import FILES, TREES, name_of


SIZE = 6
# Pairs of modules that may repeat a block, and why.
REASONS = {
    ("solvers._adaptive", "solvers._stabilised"): "the fields of a step, by their names",
}
Line = tuple[int, str]


def statements(module: str, text: str) -> list[Line]:
    """The lines of code, without docstrings, comments, imports and signatures."""
    left_out: set[int] = set()
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Import | ast.ImportFrom):
            left_out |= set(range(node.lineno, (node.end_lineno or 0) + 1))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            left_out |= set(range(node.lineno, (node.end_lineno or 0) + 1))
        elif isinstance(node, ast.FunctionDef):
            start = min(part.lineno for part in (node, *node.decorator_list))
            left_out |= set(range(start, node.body[0].lineno))
    lines = enumerate(map(str.strip, text.splitlines()), 1)
    code = (line for line in lines if line[0] not in left_out and line[1])
    return [line for line in code if not line[1].startswith("#")]


def repeats() -> Iterator[tuple[str, str, int, int]]:
    """Two modules and the lines in them where the same block begins."""
    places = defaultdict(list)
    for path in FILES:
        module = name_of(path)
        lines = statements(module, path.read_text("utf-8"))
        for i in range(len(lines) - SIZE + 1):
            block = tuple(text for _, text in lines[i : i + SIZE])
            places[block].append((module, lines[i][0]))
    for found in places.values():
        for (a, line_a), (b, line_b) in combinations(found, 2):
            yield a, b, line_a, line_b


def test_no_block_is_repeated_without_a_reason():
    found = list(repeats())
    assert not [repeat for repeat in found if repeat[:2] not in REASONS]
    assert set(REASONS) == {repeat[:2] for repeat in found}
    assert len(REASONS) <= 10
