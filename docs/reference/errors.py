"""errors.md: the error classes and exit codes, grouped by the person that must act."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from docs.reference.markdown import block, code, page, same, table
from ones import errors


def errors_page() -> str:
    """The page. Meanings are read from the tree in the docstring of `ones.errors`."""
    doc = inspect.cleandoc(errors.__doc__ or "")
    drawn = "\n".join(line[4:] for line in doc.splitlines() if line.startswith("    "))
    kinds: list[type[errors.OnesError]] = [errors.OnesError, *descendants(errors.OnesError)]
    same("errors", re.findall(r"\w+Error", drawn), (kind.__name__ for kind in kinds))
    meanings = dict(re.findall(r"(\w+Error)  +(.+)", drawn))
    return page(
        "# Errors",
        "Errors are grouped by the person that must act. Each is a subclass of "
        "`ones.errors.OnesError`, and its message names the object and the value.",
        block("text", drawn),
        table(
            ["exit code", "person to act"],
            [
                ["0", "no action: success"],
                [
                    str(errors.WorldError.exit_code),
                    "administrator of the machine: disk, network, another program; "
                    "also `ones replay` when the plans differ",
                ],
                [str(errors.UserError.exit_code), "user: change the request or the input"],
                [str(errors.BugError.exit_code), "developers: please report the bug"],
                ["130", "no action: interrupted by Ctrl-C; written files are kept"],
            ],
        ),
        "Unknown options and arguments end with exit code 2 as well.",
        "## Classes",
        table(
            ["class", "is a", "exit code", "meaning"],
            (
                [
                    code(kind.__name__),
                    code(kind.__mro__[1].__name__),
                    str(kind.exit_code),
                    re.sub(r"^exit \d+, HTTP \w+: ", "", meanings.get(kind.__name__, "the root")),
                ]
                for kind in kinds
            ),
        ),
    )


def descendants(kind: type[errors.OnesError]) -> Iterator[type[errors.OnesError]]:
    """All subclasses, depth first, in the order of the code."""
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield child
            yield from descendants(child)
