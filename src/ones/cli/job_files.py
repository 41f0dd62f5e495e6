"""Jobs that are described in files: TOML, YAML, and `#ONES` lines in scripts."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ones.errors import InvalidFileError, UserError

MARK = "#ONES"
MOST_VALUES = 1000  # of a range
MOST_LINES = 200  # of a script that are looked at


def read_job_file(path: Path) -> dict[str, Any]:
    """The content of a TOML file, or of a YAML file by its name."""
    if path.suffix not in (".yaml", ".yml"):
        from ones.config import read_toml

        return read_toml(path)
    import yaml  # type: ignore[import-untyped]

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise InvalidFileError(path, f"cannot be read: {problem.strerror}") from problem
    except (yaml.YAMLError, UnicodeDecodeError) as problem:
        raise InvalidFileError(path, f"is not YAML: {' '.join(str(problem).split())}") from problem
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise InvalidFileError(path, "is not a table of options such as `max_gpus: 4`")
    return found


def sweep_of(parameters: Sequence[str]) -> dict[str, list[str]]:
    """The values of each parameter of a sweep.

    >>> sweep_of(["lr=0.1,0.01", "seed=1..3"])
    {'lr': ['0.1', '0.01'], 'seed': ['1', '2', '3']}
    """
    found: dict[str, list[str]] = {}
    for text in parameters:
        name, equals, values = text.partition("=")
        if not (equals and name and values) or name in found:
            raise UserError(f"--sweep: {text!r} is not NAME=VALUES, as lr=0.1,0.01 or seed=1..3")
        found[name] = [value for part in values.split(",") for value in _values_of(part)]
    return found


def _values_of(part: str) -> list[str]:
    first, dots, last = part.partition("..")
    if not (dots and first.lstrip("-").isdecimal() and last.lstrip("-").isdecimal()):
        return [part]
    if int(last) - int(first) >= MOST_VALUES:
        raise UserError(f"--sweep: {part!r} has more than {MOST_VALUES} values")
    return [str(value) for value in range(int(first), int(last) + 1)]


def runnable(command: list[str], directory: Path) -> list[str]:
    """The command; a script without permission to execute gets its interpreter, as for sbatch."""
    path = directory / command[0]
    if not path.is_file() or os.access(path, os.X_OK):
        return command
    programs = {".py": "python", ".sh": "bash"}
    program = programs.get(path.suffix)
    return command if program is None else [program, *command]


def lines_in_script(command: list[str], directory: Path) -> Iterator[tuple[Path, int, list[str]]]:
    """The `#ONES` lines of the first script that the command names: file, line and words."""
    scripts = [directory / word for word in command[:3] if word.endswith((".py", ".sh"))]
    path = next((script for script in scripts if script.is_file()), None)
    if path is None:
        return
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            lines = [*islice(file, MOST_LINES)]
    except OSError as problem:
        raise InvalidFileError(path, f"cannot be read: {problem.strerror}") from problem
    for number, line in enumerate(lines, 1):
        if line.startswith(f"{MARK} "):
            try:
                yield path, number, shlex.split(line.removeprefix(MARK), comments=True)
            except ValueError as problem:
                raise InvalidFileError(path, str(problem), line=number) from problem
