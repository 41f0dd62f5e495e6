"""Tables of bounded size: the entries written last, up to a fixed number.

Users choose the names of kinds, and jobs report the configurations they ran in: without a bound,
memory and the time of a fit would grow with what is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from ones.core.job import Configuration, StepTime

MAX_CONFIGURATIONS = 64  # of one job, in a fit
MAX_KINDS = 500

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def set_bounded(table: dict[_Key, _Value], key: _Key, value: _Value, most: int) -> None:
    """Sets an entry; while there are more than `most`, removes the one written longest ago.

    >>> kinds = {"a": 1, "b": 2}
    >>> set_bounded(kinds, "a", 3, most=2)
    >>> set_bounded(kinds, "c", 4, most=2)
    >>> kinds
    {'a': 3, 'c': 4}
    """
    table.pop(key, None)
    table[key] = value
    while len(table) > most:
        del table[next(iter(table))]


def recent_profile(profile: Mapping[Configuration, StepTime]) -> Mapping[Configuration, StepTime]:
    """The configurations first measured most recently, up to `MAX_CONFIGURATIONS`."""
    if len(profile) <= MAX_CONFIGURATIONS:
        return profile
    return {c: profile[c] for c in list(profile)[-MAX_CONFIGURATIONS:]}
