"""Reads TOML files, and converts values from TOML or text to the types of settings."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from ones import launchers, policies
from ones.errors import InvalidFileError, InvalidSettingError, UnknownNameError
from ones.extensions import SettingInfo


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file. Raises InvalidFileError if it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise InvalidFileError(path, f"cannot be read: {problem.strerror}") from problem
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise InvalidFileError(path, f"is not TOML: {problem}") from problem


def of_policy(policy: str, given: Mapping[str, object]) -> dict[str, Any]:
    """Settings of a policy, converted to the types that it declares."""
    return _typed(f"policy {policy}", policies.settings_of(policy), given)


def of_launcher(launcher: str, given: Mapping[str, object]) -> dict[str, Any]:
    """Settings of a launcher, converted to the types that it declares."""
    return _typed(f"launcher {launcher}", launchers.settings_of(launcher), given)


def _typed(owner: str, infos: Sequence[SettingInfo], given: Mapping[str, object]) -> dict[str, Any]:
    known = {info.name: info.type for info in infos}
    settings = {}
    for key, value in given.items():
        if key not in known:
            raise UnknownNameError(f"setting of {owner}", key, known)
        try:
            settings[key] = convert(value, known[key])
        except InvalidSettingError as problem:
            raise InvalidSettingError(f"{key}: {problem}") from problem
    return settings


def convert(value: object, kind: str) -> Any:
    """The value, converted to the type of a setting; values of other types are returned as is.

    >>> convert("true", "bool"), convert("12", "float"), convert("12", "str")
    (True, 12.0, '12')
    """
    expected, read = _READERS.get(kind.removesuffix(" | None"), ("", lambda value: value))
    try:
        return read(value)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise InvalidSettingError(f"{value!r} is not {expected}") from None


def _int(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError
    return int(value)


def _float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError
    number = float(value)
    if not isfinite(number):
        raise ValueError
    return number


def _bool(value: object) -> bool:
    return value if isinstance(value, bool) else {"true": True, "false": False}[str(value)]


def _str(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


_READERS: Mapping[str, tuple[str, Callable[[object], Any]]] = {
    "int": ("a whole number", _int),
    "float": ("a number", _float),
    "bool": ("true or false", _bool),
    "str": ("a text", _str),
}
