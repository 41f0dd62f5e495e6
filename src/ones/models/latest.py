"""Bounded memories: the entries that were written last, and no more than a fixed number of them.

Users choose the names of kinds, and jobs report which configurations they ran in: without a bound,
memory and the time of a fit would grow with what is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from ones.core.job import Configuration, StepTime

#: configurations of one job that a model is fitted to
MOST_CONFIGURATIONS = 64
#: kinds of job that are remembered
MOST_KINDS = 500

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def write(table: dict[_Key, _Value], key: _Key, value: _Value, most: int) -> None:
    """Set an entry. While there are more than `most`, forget the one written longest ago.

    >>> kinds = {"a": 1, "b": 2}
    >>> write(kinds, "a", 3, most=2)
    >>> write(kinds, "c", 4, most=2)
    >>> kinds
    {'a': 3, 'c': 4}
    """
    table.pop(key, None)
    table[key] = value
    while len(table) > most:
        del table[next(iter(table))]


def latest(profile: Mapping[Configuration, StepTime]) -> Mapping[Configuration, StepTime]:
    """The configurations that were measured last, for the first time; at most 64."""
    if len(profile) <= MOST_CONFIGURATIONS:
        return profile
    return {c: profile[c] for c in list(profile)[-MOST_CONFIGURATIONS:]}
