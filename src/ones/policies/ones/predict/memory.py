"""Saves and loads the learned state of the parts of the policy, as plain JSON values.

A part declares its attributes and their types in `memory`; nested parts save themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, get_origin

import msgspec
import numpy as np


class Remembers:
    """
    >>> class Mean(Remembers):
    ...     memory = {"_seconds": float, "_jobs": set[str]}
    ...     def __init__(self) -> None:
    ...         self._seconds, self._jobs = 2.5, {"b", "a"}
    >>> Mean().save()
    {'seconds': 2.5, 'jobs': ['a', 'b']}
    >>> other = Mean()
    >>> other.load({"seconds": 1, "jobs": []})
    >>> other._seconds, other._jobs
    (1.0, set())
    """

    #: attributes and their types; None: a nested part, which saves itself
    memory: ClassVar[Mapping[str, Any]]

    def save(self) -> dict[str, Any]:
        return {name.lstrip("_"): _plain(getattr(self, name)) for name in self.memory}

    def load(self, saved: Mapping[str, Any]) -> None:
        for name, kind in self.memory.items():
            value = saved[name.lstrip("_")]
            if kind is None:
                getattr(self, name).load(value)
            else:
                setattr(self, name, msgspec.convert(value, kind, dec_hook=_array, strict=False))


def _plain(value: object) -> object:
    save = getattr(value, "save", None)
    if save is not None:
        return save()
    if isinstance(value, set):
        return sorted(value)  # so that equal states are saved as equal values
    return msgspec.to_builtins(value, enc_hook=lambda array: array.tolist())


def _array(kind: type, value: object) -> object:
    assert np.ndarray in (kind, get_origin(kind)), kind
    return np.array(value)
