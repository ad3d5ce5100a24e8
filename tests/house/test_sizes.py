"""Files that can be read at one sitting."""

from package_files import FILES, PACKAGE, ROOT


# Longer than others, as each is one thing:
LONG = {
    "nets/_blocks.py": "the layers that networks are made of, a class each",
    "nets/_layered.py": "one class",
    "run/_integrate.py": "one loop",
    "solvers/_adaptive.py": "one solver",
    "solvers/_correction.py": "one iteration",
    "solvers/_exact_kinks.py": "one solver",
    "solvers/_trial_step.py": "one step",
}
MOST, MOST_IN_TESTS = 300, 400


def num_lines(path):
    return len(path.read_text("utf-8").splitlines())


def test_modules_are_short():
    sizes = {path.relative_to(PACKAGE).as_posix(): num_lines(path) for path in FILES}
    assert {name for name, size in sizes.items() if size > MOST} == set(LONG)


def test_tests_are_short():
    long = [p.name for p in (ROOT / "tests").rglob("*.py") if num_lines(p) > MOST_IN_TESTS]
    assert not long
