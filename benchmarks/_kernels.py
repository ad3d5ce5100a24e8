"""How many kernels a compiled program launches."""

import re


# Instructions that launch nothing of their own, but for what they call
_BOOKKEEPING = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "after-all",
    "while",
    "conditional",
    "call",
    "async-start",
    "async-update",
    "async-done",
    "copy-start",
    "copy-done",
}
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?[\w.-]+ = .*?[\])}] ([a-z][\w-]*)\(")
_CALLED = re.compile(
    r"(?:body|condition|true_computation|false_computation|to_apply|calls)=%?([\w.-]+)"
)
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")


def num_kernels(program: str) -> int:
    """Instructions of an optimised HLO program that launch a kernel, a fusion being one.

    Those in the body of a loop are launched once a round, and of branches only one's.
    """
    computations, entry = _computations(program)
    seen, todo, count = {entry}, [entry], 0
    while todo:
        for line in computations[todo.pop()]:
            found = _INSTRUCTION.match(line)
            if found is None:
                continue
            kind = found.group(1)
            if kind not in _BOOKKEEPING:
                count += 1
                continue
            called = _CALLED.findall(line)
            for branches in _BRANCHES.findall(line):
                called += [name.strip().removeprefix("%") for name in branches.split(",")]
            new = set(called) - seen
            seen |= new
            todo.extend(new)
    return count


def _computations(program: str) -> tuple[dict[str, list[str]], str]:
    """The lines of each computation, and the name of the entry."""
    computations: dict[str, list[str]] = {}
    entry, name = "", ""
    for line in program.splitlines():
        if line and not line[0].isspace() and line.endswith("{"):
            words = line.split()
            is_entry = words[0] == "ENTRY"
            name = words[1 if is_entry else 0].removeprefix("%")
            computations[name] = []
            entry = name if is_entry else entry
        elif name:
            computations[name].append(line)
    return computations, entry
