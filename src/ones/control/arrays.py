"""Arrays and sweeps: one submission that becomes several jobs, its tasks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod

from ones.errors import UserError

MOST_TASKS = 10_000
_PLACE = re.compile(r"\{([^{}]+)\}")
_PART = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?")


@dataclass(frozen=True, slots=True)
class Task:
    index: int
    values: Mapping[str, str] = field(default_factory=dict)  # parameter of a sweep -> value

    def command(self, command: Sequence[str]) -> list[str]:
        """The command of the task: `{index}` and `{name}` are replaced; a parameter of a sweep that
        no argument names is appended.

        >>> Task(3, {"lr": "0.1", "seed": "1"}).command(["python", "a.py", "out/{lr}"])
        ['python', 'a.py', 'out/0.1', '--seed=1']
        """
        known = {"index": str(self.index), **self.values}
        named: set[str] = set()

        def filled(place: re.Match[str]) -> str:
            named.add(place[1])
            return known.get(place[1], place[0])

        made = [_PLACE.sub(filled, argument) for argument in command]
        return made + [f"--{n}={v}" for n, v in self.values.items() if n not in named]

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(f"{name}={value}"[:100] for name, value in self.values.items())


def tasks_of(
    array: str | None, sweep: Mapping[str, Sequence[str]]
) -> tuple[list[Task], int | None]:
    """The tasks, and how many of them may run at a time; None: all.

    >>> tasks, limit = tasks_of("0-6:3,9%2", {})
    >>> [task.index for task in tasks], limit
    ([0, 3, 6, 9], 2)
    >>> [dict(task.values) for task in tasks_of("%1", {"lr": ["1", "2"], "seed": ["7"]})[0]]
    [{'lr': '1', 'seed': '7'}, {'lr': '2', 'seed': '7'}]
    """
    text, percent, most = (array or "").partition("%")
    if percent and not (most.isdecimal() and int(most[:9]) > 0):
        raise UserError(f"array: {array!r}: {most!r} is not a number of tasks from 1")
    limit = int(most[:9]) if percent else None
    if sweep:
        if text:
            raise UserError("array: not together with sweep, except for a limit such as %4")
        _check_number(prod(map(len, sweep.values())))
        rows = product(*sweep.values())
        return [Task(i, dict(zip(sweep, row, strict=True))) for i, row in enumerate(rows)], limit
    indexes: dict[int, None] = {}
    for part in text.split(","):
        found = _PART.fullmatch(part)
        if found is None:
            raise UserError(f"array: {array!r} is not a list of indexes such as 0-15%4 or 1,3,5-7")
        first, last, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
        if last < first or not step:
            raise UserError(
                f"array: {part!r} has no index: the smaller number is first, a step at least 1"
            )
        _check_number(len(indexes) + (last - first) // step + 1)
        indexes.update(dict.fromkeys(range(first, last + 1, step)))
    return [Task(index) for index in indexes], limit


def _check_number(tasks: int) -> None:
    if tasks > MOST_TASKS:
        raise UserError(f"array: {tasks} tasks are more than {MOST_TASKS}")
    if not tasks:
        raise UserError("sweep: a parameter has no value")
