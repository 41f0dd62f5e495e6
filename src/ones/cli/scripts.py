"""Checks a command before it is submitted: whether it can run, and whether it is elastic."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ones.errors import UserError

#: `ones.join`, or a loop of another library that joins by itself
_JOIN = re.compile(
    rb"\bones\.join\b|\bfrom\s+ones\s+import\b[^\n]*\bjoin\b"
    rb"|\bones\.integrations(?:\.|\s+import\s+)(?:accelerate|lightning|transformers)\b"
)
_WORD = re.compile(r"[\w./-]+")
ELF = b"\x7fELF"  # first bytes of a program
SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
MOST_BYTES = 1 << 20  # of a shell script that is read
_IMPORT = re.compile(rb"^[ \t]*(?:from|import)[ \t]+([A-Za-z_][\w.]*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    command: list[str]
    name: str
    elastic: bool | None  # whether it calls `ones.join`; None: unknown
    files: dict[str, str]


def look_at(command: list[str], directory: Path, env: dict[str, str]) -> Script:
    """The script of a command. Raises UserError for a command that cannot run."""
    program = command[0]
    found = shutil.which(
        program if os.sep not in program else str(directory / program), path=env.get("PATH")
    )
    if found is None:
        what = "is not executable" if (directory / program).is_file() else "no such program"
        raise UserError(f"{program}: {what}")
    command = [found, *command[1:]]
    if not os.path.basename(found).startswith("python"):
        return _of_another_program(command, directory)
    script = _script_of(command[1:])
    if script is None:
        return Script(command, " ".join(command[1:3]), None, {})
    path = directory / script
    try:
        text = path.read_bytes()
    except OSError as problem:
        raise UserError(f"{path}: {(problem.strerror or 'cannot be read').lower()}") from problem
    files = {str(path): hashlib.sha256(text).hexdigest()}
    return Script(command, path.name, _joins(path, text, {path}), files)


def _of_another_program(command: list[str], directory: Path) -> Script:
    """The script of a launcher such as torchrun, or of a shell script.

    If the Python files that it names do not call `ones.join`, the job has a fixed size. If one
    does, that is not sure: the launcher may run it or not.
    """
    name = os.path.basename(command[0])
    texts: dict[Path, bytes] = {}
    words = command
    for argument in command[1:] if name in SHELLS else command[:1]:
        path = directory / argument
        with suppress(OSError):
            if path.stat().st_size <= MOST_BYTES and not (text := path.read_bytes()).startswith(
                ELF
            ):
                texts[path], words = text, [*words, *_WORD.findall(text.decode(errors="replace"))]
    for word in words:
        path = directory / word
        if word.endswith(".py") and path.is_file():
            texts[path] = path.read_bytes()
    files = {str(path): hashlib.sha256(text).hexdigest() for path, text in texts.items()}
    scripts = {path: text for path, text in texts.items() if path.suffix == ".py"}
    joins = any(_joins(path, text, {path}) for path, text in scripts.items())
    name = next((path.name for path in texts), name)
    return Script(command, name, False if scripts and not joins else None, files)


def _script_of(arguments: list[str]) -> str | None:
    """The file that Python runs; None for a module, a line of code or an interactive session.

    >>> _script_of(["-u", "-W", "ignore", "-Xdev", "train.py", "-m", "8"])
    'train.py'
    >>> _script_of(["-um", "train"]) is None
    True
    """
    rest = iter(arguments)
    for argument in rest:
        if argument == "-" or not argument.startswith("-"):
            return None if argument == "-" else argument
        if argument.startswith("--"):
            if argument == "--check-hash-based-pycs":
                next(rest, None)
            continue
        for index, letter in enumerate(argument[1:], 1):
            if letter in "cm":
                return None
            if letter in "WX":  # its value is the rest of the argument, or the next argument
                if index == len(argument) - 1:
                    next(rest, None)
                break
    return None


def lacks_ones(python: str, directory: Path, env: dict[str, str]) -> bool:
    """Whether this is another Python than ours, in which `ones` is not installed."""
    if os.path.dirname(python) == os.path.dirname(sys.executable):
        return False
    code = "import importlib.util as u, sys; sys.exit(3 * (u.find_spec('ones') is None))"
    with suppress(OSError, subprocess.SubprocessError):
        asked = subprocess.run(
            [python, "-c", code], cwd=directory, env=env, capture_output=True, timeout=10,
            check=False,
        )  # fmt: skip
        return asked.returncode == 3
    return False


def _joins(path: Path, text: bytes, seen: set[Path]) -> bool:
    """Whether a script, or a module beside it that it imports, calls `ones.join`."""
    if _JOIN.search(text):
        return True
    for name in _IMPORT.findall(text):
        module = path.parent / f"{name.decode().replace('.', '/')}.py"
        if module not in seen and module.is_file():
            seen.add(module)
            if _joins(module, module.read_bytes(), seen):
                return True
    return False
