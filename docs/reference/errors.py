"""errors.md: the tree of errors, by who must act."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from docs.reference.markdown import block, code, page, same, table
from ones import errors


def errors_page() -> str:
    """The tree as it is drawn at the head of ones.errors."""
    doc = inspect.cleandoc(errors.__doc__ or "")
    drawn = "\n".join(line[4:] for line in doc.splitlines() if line.startswith("    "))
    kinds: list[type[errors.OnesError]] = [errors.OnesError, *descendants(errors.OnesError)]
    same("errors", re.findall(r"\w+Error", drawn), (kind.__name__ for kind in kinds))
    told = dict(re.findall(r"(\w+Error)  +(.+)", drawn))
    return page(
        "# Errors",
        "Errors are told apart by who must act. Every one is a subclass of "
        "`ones.errors.OnesError`, and its message names the thing and the value.",
        block("text", drawn),
        table(
            ["exit code", "who must act"],
            [
                ["0", "nobody: it worked"],
                [
                    str(errors.WorldError.exit_code),
                    "whoever runs the machine: disk, network, another program; "
                    "`ones replay` also ends so when the plans differ",
                ],
                [str(errors.UserError.exit_code), "you: the request or the input must change"],
                [str(errors.BugError.exit_code), "us: please report it"],
                ["130", "nobody: it was interrupted by Ctrl-C; what was written is kept"],
            ],
        ),
        "Options and arguments that a command does not know end with 2 as well.",
        "## Classes",
        table(
            ["class", "is a", "exit code", "meaning"],
            (
                [
                    code(kind.__name__),
                    code(kind.__mro__[1].__name__),
                    str(kind.exit_code),
                    re.sub(r"^exit \d+, HTTP \w+: ", "", told.get(kind.__name__, "the root")),
                ]
                for kind in kinds
            ),
        ),
    )


def descendants(kind: type[errors.OnesError]) -> Iterator[type[errors.OnesError]]:
    """The tree of this module, depth first, in the order of the code."""
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield child
            yield from descendants(child)
