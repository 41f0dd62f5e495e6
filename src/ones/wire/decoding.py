"""Decodes JSON to bounded values, or raises an error that names field and value.

msgspec decodes and checks. Text that it refuses is decoded again in plain Python: to say what is
wrong, and to read run logs of earlier versions (the strings nan, inf and -inf for floats, and lone
surrogates).
"""

from __future__ import annotations

import json
import re
from typing import Any, Generic, TypeVar

import msgspec

from ones.errors import UserError, short

T = TypeVar("T")


class CodecError(ValueError):
    """An invalid value: `field: what is wrong`."""

    def __init__(self, field: str, problem: str) -> None:
        self.field, self.problem = field, problem
        super().__init__(f"{field}: {problem}" if field else problem)


def parse(text: str | bytes) -> Any:  # noqa: ANN401  # any JSON value
    """The plain value of a JSON text, or a CodecError that shows the text."""
    try:
        return _JSON.decode(_text(text))
    except json.JSONDecodeError as problem:
        where = f"{problem.msg} at column {problem.pos + 1}"
        raise CodecError("", f"{short(problem.doc)} is not JSON: {where}") from problem
    except UnicodeDecodeError as problem:
        raise CodecError("", f"{short(text)} is not JSON: it is not UTF-8") from problem
    except (ValueError, RecursionError) as problem:
        raise CodecError("", f"{short(_text(text))} is not JSON: {str(problem)[:80]}") from problem


def _text(text: str | bytes) -> str:
    return text if isinstance(text, str) else text.decode()


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON value")


_JSON = json.JSONDecoder(parse_constant=_no_constant)
_REFUSALS = (msgspec.MsgspecError, UserError, UnicodeError, RecursionError)
#: values that only earlier versions wrote into a log
_EARLIER = re.compile(r'"(nan|-?inf)"|\\u[dD][89a-fA-F]')


class Decoder(Generic[T]):
    """Decodes values of one type from JSON. `logs`: also values of logs of earlier versions."""

    def __init__(self, kind: Any, *, logs: bool = False) -> None:  # noqa: ANN401  # any type
        self._kind = kind
        self._logs = logs
        self._json: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind)

    def decode(self, text: str | bytes) -> T:
        try:
            return self._json.decode(text)
        except _REFUSALS as problem:
            plain = parse(text)  # raises if the text is not JSON
            if not self._logs or not _EARLIER.search(_text(text)):
                raise _explained(problem, self._kind, plain) from problem
        return self.convert(plain)

    def convert(self, plain: object) -> T:
        """The value of plain JSON values."""
        try:
            converted: T = msgspec.convert(plain, self._kind, strict=not self._logs)
        except _REFUSALS as problem:
            raise _explained(problem, self._kind, plain) from problem
        return converted


def _explained(problem: Exception, kind: Any, plain: object) -> CodecError:  # noqa: ANN401
    if not isinstance(problem, msgspec.ValidationError):
        what = str(problem).removeprefix("JSON is malformed: ")
        text = f"is not valid JSON: {what}" if isinstance(problem, msgspec.DecodeError) else what
        return CodecError("", " ".join(text.split())[:300])
    from ones.wire.problems import explained

    return CodecError(*explained(str(problem), kind, plain))
