"""Everything that can go wrong, by who must act.

    OnesError
    ├── UserError               exit 2, HTTP 4xx: the request or the input must change
    │   ├── InvalidJobError        a job that cannot exist
    │   ├── InvalidFileError       a trace, log or settings file: names file, line, field
    │   ├── UnknownNameError       a policy, setting or job nobody knows; suggests near ones
    │   └── InvalidSettingError    a value out of its range
    ├── WorldError              exit 1, HTTP 503: the machine, disk, network or another program
    └── BugError                exit 70, HTTP 500: ours to fix
        ├── BrokenPolicyError      a policy decided what no engine could carry out
        ├── BrokenEngineError      an engine reported what cannot have happened
        └── StaleViewError         a policy kept a view beyond its event

Messages name the thing and the value: "job bert-7: base_batch 0 is not at least 1".
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from traceback import extract_tb

#: a list of names in one line
MOST_NAMED = 40


def short(value: object) -> str:
    """A value as it is shown in a message: its text, in at most 60 characters."""
    try:
        text = repr(value[:200] if isinstance(value, str | bytes) else value)
    except (RecursionError, ValueError):  # too deep, or a whole number of thousands of digits
        return f"a {type(value).__name__} that is too large to show"
    return text if len(text) <= 60 else text[:57] + "..."


class OnesError(Exception):
    """The root. Carries the exit code of the command line."""

    exit_code = 1

    def __reduce__(self) -> tuple[object, ...]:
        """From one process to another: by its message, whatever it was made of."""
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
    """One line that names file, line, field and value: `trace.csv:7: gpus: 'many' is ...`."""

    def __init__(
        self, file: object, problem: str, *, line: int | None = None, field: str | None = None
    ) -> None:
        place = str(file) if line is None else f"{file}:{line}"
        what = problem if field is None else f"{field}: {problem}"
        super().__init__(f"{place}: {what}")


class UnknownNameError(UserError):
    """`unknown policy 'fifoo'; did you mean 'fifo'?` or, with nothing near, the whole list."""

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
    """Somebody else's error in one line: its kind, its words, and where it was raised."""
    frames = [f for f in extract_tb(problem.__traceback__) if not f.filename.startswith("<frozen")]
    told = f"{type(problem).__name__}: {problem}".replace("\n", " ")
    if not frames or isinstance(problem, SyntaxError):  # which names its own place
        return told
    file = frames[-1].filename.rpartition("/")[2]
    return f"{told} ({file}:{frames[-1].lineno})"
