"""Jobs that are described in files: TOML, YAML, and `#ONES` lines in scripts."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from ones.errors import InvalidFileError

MARK = "#ONES"
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
