"""Encodes values as one line of JSON.

JSON has no number for nan and infinity: they are written as the strings nan, inf and -inf.
"""

from __future__ import annotations

import json
from math import isfinite
from numbers import Integral, Real
from typing import Any

import msgspec


def _number(value: object) -> int | float:
    """A number of numpy or another library as a Python number."""
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise TypeError(f"no encoding for a {type(value).__name__}")


_ENCODER = msgspec.json.Encoder(enc_hook=_number)


def to_json(value: object) -> str:
    try:
        text = _ENCODER.encode(value)
    except UnicodeEncodeError:  # a lone surrogate, which JSON can escape
        return _slowly(value)
    if b"null" in text:  # perhaps a number that is not finite
        return _slowly(value)
    return text.decode()


def _slowly(value: object) -> str:
    return json.dumps(to_plain(value), separators=(",", ":"), allow_nan=False)


def to_plain(value: object) -> Any:  # noqa: ANN401  # any JSON value
    """The value as plain JSON values, in new lists and dictionaries."""
    return _finite(msgspec.to_builtins(value, enc_hook=_number))


def _finite(plain: Any) -> Any:  # noqa: ANN401  # any JSON value
    """The value with nan and infinities as strings."""
    if isinstance(plain, float):
        return plain if isfinite(plain) else str(plain)
    if isinstance(plain, dict):
        return {key: _finite(value) for key, value in plain.items()}
    if isinstance(plain, list | tuple):
        return [_finite(value) for value in plain]
    return plain
