"""Exceptions of the package, by the party that can fix the cause.

    OnesError
    ├── UserError               exit 2, HTTP 4xx: the request or the input must change
    │   ├── InvalidJobError        a job that cannot exist
    │   ├── InvalidFileError       a trace, log or settings file: names file, line, field
    │   ├── UnknownNameError       an unknown policy, setting or job; suggests similar names
    │   └── InvalidSettingError    a value out of its range
    ├── WorldError              exit 1, HTTP 503: the machine, disk, network or another program
    └── BugError                exit 70, HTTP 500: a fault in ONES or in an extension
        ├── BrokenPolicyError      a policy raised, or decided what no engine could carry out
        ├── BrokenEngineError      an engine reported what cannot have happened
        └── StaleViewError         a policy read a view after a later event

Messages name the object, the field and the value: "job bert-7: base_batch 0 is not at least 1".
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from traceback import extract_tb

#: maximum number of names in a message
MOST_NAMED = 40


def short(value: object) -> str:
    """A value as text for a message, in at most 60 characters."""
    try:
        text = repr(value[:200] if isinstance(value, str | bytes) else value)
    except (RecursionError, ValueError):  # too deep, or a whole number of thousands of digits
        return f"a {type(value).__name__} that is too large to show"
    return text if len(text) <= 60 else text[:57] + "..."


class OnesError(Exception):
    """The base class of all errors. `exit_code` is that of the command line."""

    exit_code = 1

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled by its message only, so that any error can go from one process to another."""
        return _with_message, (type(self), str(self))


def _with_message(kind: type[OnesError], message: str) -> OnesError:
    return kind.__new__(kind, message)


class UserError(OnesError):
    exit_code = 2


class WorldError(OnesError):
    exit_code = 1


class BugError(OnesError):
    exit_code = 70


class InvalidJobError(UserError):
    def __init__(self, job: str, problem: str) -> None:
        super().__init__(f"job {job}: {problem}")


class InvalidFileError(UserError):
    """An invalid file; names file, line and field: `trace.csv:7: gpus: 'many' is ...`."""

    def __init__(
        self, file: object, problem: str, *, line: int | None = None, field: str | None = None
    ) -> None:
        where = str(file) if line is None else f"{file}:{line}"
        what = problem if field is None else f"{field}: {problem}"
        super().__init__(f"{where}: {what}")


class UnknownNameError(UserError):
    """`unknown policy 'fifoo'; did you mean 'fifo'?`, or the known names if none is similar."""

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = get_close_matches(name, names, n=1)
        if near:
            hint = f"did you mean {near[0]!r}?"
        else:
            more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
            hint = f"known: {', '.join(names[:MOST_NAMED])}{more}" if names else "there are none"
        super().__init__(f"unknown {what} {name!r}; {hint}")


class InvalidSettingError(UserError):
    pass


class BrokenPolicyError(BugError):
    pass


class BrokenEngineError(BugError):
    pass


class StaleViewError(BugError):
    pass


def described(problem: BaseException) -> str:
    """An exception in one line: its class, its message, and where it was raised."""
    frames = [f for f in extract_tb(problem.__traceback__) if not f.filename.startswith("<frozen")]
    text = f"{type(problem).__name__}: {problem}".replace("\n", " ")
    if not frames or isinstance(problem, SyntaxError):  # a SyntaxError names its file and line
        return text
    file = frames[-1].filename.rpartition("/")[2]
    return f"{text} ({file}:{frames[-1].lineno})"
