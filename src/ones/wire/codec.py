"""Frozen values to plain JSON values and back: strict, closed, and nothing hidden.

A `Codec` is made for the classes that may come from outside, so no input can name
another one. Fields at their default are left out; unknown, missing or wrong fields
are refused by name and value. Non-finite floats travel as the strings nan, inf, -inf.
"""

from __future__ import annotations

import dataclasses
import json
import math
import threading
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import Any

from ones.errors import UserError

Encoder = Callable[[Any], Any]
Decoder = Callable[[Any, str], Any]  # (plain value, name of the field) -> value

_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class CodecError(ValueError):
    """`field: value is not what it should be`."""

    def __init__(self, field: str, problem: str) -> None:
        self.field, self.problem = field, problem
        super().__init__(f"{field}: {problem}" if field else problem)


def parse(text: str | bytes) -> Any:
    """The plain value of a JSON text, or a CodecError that shows the text."""
    try:
        return _JSON.decode(text if isinstance(text, str) else text.decode())
    except json.JSONDecodeError as problem:
        where = f"{problem.msg} at column {problem.pos + 1}"
        raise CodecError("", f"{short(problem.doc)} is not JSON: {where}") from problem
    except (ValueError, RecursionError) as problem:
        raise CodecError("", f"{short(text)} is not JSON: {problem}") from problem


def _no_constant(name: str) -> Any:
    raise ValueError(f"it knows no {name}")


_JSON = json.JSONDecoder(parse_constant=_no_constant)


class Codec:
    """Encodes and decodes instances of the given dataclasses, tagged with their names."""

    def __init__(self, *classes: type) -> None:
        self._compiler = _Compiler()
        self._classes = {cls.__name__: cls for cls in classes}

    def encode(self, value: object) -> dict[str, Any]:
        cls = type(value)
        if self._classes.get(cls.__name__) is not cls:
            raise TypeError(f"{cls.__name__} does not travel here")
        plain: dict[str, Any] = {"type": cls.__name__}
        self._compiler.fields_into(cls, value, plain)
        return plain

    def decode(self, plain: object) -> Any:
        if not isinstance(plain, dict):
            raise CodecError("", f"{short(plain)} is not an object")
        tag = plain.get("type")
        cls = self._classes.get(tag) if isinstance(tag, str) else None
        if cls is None:
            raise CodecError("type", f"{short(tag)} is not one of {', '.join(self._classes)}")
        rest = {key: value for key, value in plain.items() if key != "type"}
        return self._compiler.decoder(cls)(rest, "")


class _Compiler:
    """Builds an encoder and a decoder for each type once, from its annotations."""

    def __init__(self) -> None:
        self._encoders: dict[Any, Encoder | None] = {}
        self._decoders: dict[Any, Decoder] = {}
        self._making: dict[Any, Decoder] = {}
        self._lock = threading.RLock()  # what is half made is no other thread's business
        self._tables: dict[type, list[tuple[str, Encoder | None, Any]]] = {}

    # encoding

    def fields_into(self, cls: type, value: object, plain: dict[str, Any]) -> None:
        table = self._tables.get(cls)
        if table is None:
            hints = typing.get_type_hints(cls)
            table = self._tables[cls] = [
                (f.name, self.encoder(hints[f.name]), _default(f)) for f in dataclasses.fields(cls)
            ]
        for name, encode, default in table:
            item = getattr(value, name)
            if item is default or (default is not _NOTHING and item == default):
                continue
            plain[name] = item if encode is None else encode(item)

    def encoder(self, hint: Any) -> Encoder | None:
        """None: the value travels as it is."""
        if hint not in self._encoders:
            self._encoders[hint] = self._make_encoder(hint)
        return self._encoders[hint]

    def _make_encoder(self, hint: Any) -> Encoder | None:
        hint = _bare(hint)
        if hint in (int, str, bool, type(None), Any):
            return None
        if hint is float:
            return _encode_float
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            return self._union_encoder([a for a in args if a is not type(None)])
        if origin in (tuple, list, set, frozenset):
            if origin is tuple and (len(args) != 2 or args[1] is not Ellipsis):
                return self._row_encoder(args)
            return self._sequence_encoder(args[0], in_order=origin in (tuple, list))
        if origin in (dict, Mapping):
            return self._mapping_encoder(*args)
        if isinstance(hint, type) and issubclass(hint, Enum):
            return lambda value: value.value
        if isinstance(hint, type) and hasattr(hint, "_fields"):
            hints = typing.get_type_hints(hint)
            return self._row_encoder([hints[name] for name in hint._fields])
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            cls = hint

            def encode_dataclass(value: Any) -> Any:
                plain: dict[str, Any] = {}
                self.fields_into(cls, value, plain)
                return plain

            return encode_dataclass
        raise TypeError(f"no encoding for {hint!r}")

    def _sequence_encoder(self, item: Any, *, in_order: bool) -> Encoder:
        encode = self.encoder(item)

        def encode_sequence(value: Any) -> Any:
            items = value if in_order else sorted(value)
            return list(items) if encode is None else [encode(i) for i in items]

        return encode_sequence

    def _row_encoder(self, hints: Any) -> Encoder:
        encoders = [self.encoder(hint) for hint in hints]
        if all(e is None for e in encoders):
            return list

        def encode_row(value: Any) -> Any:
            return [v if e is None else e(v) for e, v in zip(encoders, value, strict=True)]

        return encode_row

    def _mapping_encoder(self, key: Any, item: Any) -> Encoder:
        encode_key, encode = self.encoder(key), self.encoder(item)
        if _bare(key) is str:
            if encode is None:
                return dict
            return lambda value: {k: encode(v) for k, v in value.items()}

        def pairs(value: Any) -> Any:
            return [
                [k if encode_key is None else encode_key(k), v if encode is None else encode(v)]
                for k, v in value.items()
            ]

        return pairs

    def _union_encoder(self, options: list[Any]) -> Encoder | None:
        if len(options) == 1:
            encode = self.encoder(options[0])
            return None if encode is None else lambda v: None if v is None else encode(v)
        if not all(dataclasses.is_dataclass(o) for o in options):
            raise TypeError(f"no encoding for a union of {options!r}")

        def encode_tagged(value: Any) -> Any:
            if value is None:
                return None
            plain = {"type": type(value).__name__}
            self.fields_into(type(value), value, plain)
            return plain

        return encode_tagged

    # decoding

    def decoder(self, hint: Any) -> Decoder:
        found = self._decoders.get(hint)
        if found is not None:
            return found
        with self._lock:
            if hint not in self._decoders and hint not in self._making:
                # a type that contains itself finds this while its own decoder is being made
                self._making[hint] = partial(self._later, hint)
                self._decoders[hint] = self._make_decoder(hint)
                del self._making[hint]
            return self._decoders.get(hint) or self._making[hint]

    def _later(self, hint: Any, plain: Any, at: str) -> Any:
        found = self._decoders.get(hint)
        if found is None:
            with self._lock:  # another thread makes it
                found = self._decoders[hint]
        return found(plain, at)

    def _make_decoder(self, hint: Any) -> Decoder:
        hint = _bare(hint)
        if hint is Any:
            return lambda plain, at: plain
        if hint is float:
            return _decode_float
        if hint in (int, str, bool, type(None)):
            return _exactly(hint)
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            return self._union_decoder(args)
        if origin in (tuple, list, set, frozenset):
            if origin is tuple and (len(args) != 2 or args[1] is not Ellipsis):
                return self._row_decoder(args, tuple)
            item = self.decoder(args[0])
            make: Any = origin
            return lambda plain, at: make(item(p, at) for p in _as_list(plain, at))
        if origin in (dict, Mapping):
            return self._mapping_decoder(*args)
        if isinstance(hint, type) and issubclass(hint, Enum):
            return _enum_decoder(hint)
        if isinstance(hint, type) and hasattr(hint, "_fields"):
            hints = typing.get_type_hints(hint)
            cls: Any = hint
            return self._row_decoder([hints[n] for n in hint._fields], lambda r: cls(*r))
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            return self._dataclass_decoder(hint)
        raise TypeError(f"no decoding for {hint!r}")

    def _dataclass_decoder(self, cls: type) -> Decoder:
        hints = typing.get_type_hints(cls)
        table = {f.name: self.decoder(hints[f.name]) for f in dataclasses.fields(cls)}
        required = [f.name for f in dataclasses.fields(cls) if _default(f) is _NOTHING]

        def decode_dataclass(plain: Any, at: str) -> Any:
            if not isinstance(plain, dict):
                raise CodecError(at, f"{short(plain)} is not an object")
            values = {}
            for name, item in plain.items():
                if name not in table:
                    raise CodecError(
                        _join(at, name), f"{cls.__name__} has no such field ({short(item)})"
                    )
                values[name] = table[name](item, _join(at, name))
            for name in required:
                if name not in values:
                    raise CodecError(_join(at, name), "is missing")
            try:
                return cls(**values)
            except (ValueError, UserError) as problem:
                raise CodecError(at, str(problem)) from problem

        return decode_dataclass

    def _row_decoder(self, hints: Any, make: Callable[[Any], Any]) -> Decoder:
        decoders = [self.decoder(hint) for hint in hints]

        def decode_row(plain: Any, at: str) -> Any:
            row = _as_list(plain, at)
            if len(row) != len(decoders):
                raise CodecError(at, f"{short(plain)} has not {len(decoders)} items")
            return make([d(p, at) for d, p in zip(decoders, row, strict=True)])

        return decode_row

    def _mapping_decoder(self, key: Any, item: Any) -> Decoder:
        decode_key, decode = self.decoder(key), self.decoder(item)
        if _bare(key) is str:

            def decode_object(plain: Any, at: str) -> Any:
                if not isinstance(plain, dict):
                    raise CodecError(at, f"{short(plain)} is not an object")
                return {k: decode(v, _join(at, k)) for k, v in plain.items()}

            return decode_object

        def decode_pairs(plain: Any, at: str) -> Any:
            rows = [_as_list(pair, at) for pair in _as_list(plain, at)]
            if any(len(row) != 2 for row in rows):
                raise CodecError(at, f"{short(plain)} is not a list of pairs")
            return {decode_key(k, at): decode(v, at) for k, v in rows}

        return decode_pairs

    def _union_decoder(self, options: Any) -> Decoder:
        nullable = type(None) in options
        rest = [o for o in options if o is not type(None)]
        if len(rest) == 1:
            decode = self.decoder(rest[0])
        else:
            tagged = Codec(*rest)

            def decode(plain: Any, at: str) -> Any:
                try:
                    return tagged.decode(plain)
                except CodecError as problem:
                    raise CodecError(_join(at, problem.field), problem.problem) from problem

        if not nullable:
            return decode
        return lambda plain, at: None if plain is None else decode(plain, at)


class _Nothing:
    pass


_NOTHING = _Nothing()


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return _NOTHING


def _bare(hint: Any) -> Any:
    while hasattr(hint, "__supertype__"):  # a NewType
        hint = hint.__supertype__
    return hint


def _encode_float(value: float) -> float | str:
    number = float(value)  # of a whole one, too: what is read back gives the same text again
    return number if math.isfinite(number) else str(number)


def _decode_float(plain: Any, at: str) -> float:
    if isinstance(plain, str) and plain in _NON_FINITE:
        return _NON_FINITE[plain]
    if isinstance(plain, bool) or not isinstance(plain, int | float):
        raise CodecError(at, f"{short(plain)} is not a number")
    try:
        return float(plain)
    except OverflowError:
        raise CodecError(at, f"{short(plain)} is too large") from None


def _exactly(kind: type) -> Decoder:
    names = {int: "a whole number", str: "a string", bool: "true or false", type(None): "null"}

    def decode(plain: Any, at: str) -> Any:
        if type(plain) is not kind:
            raise CodecError(at, f"{short(plain)} is not {names[kind]}")
        return plain

    return decode


def _enum_decoder(cls: type[Enum]) -> Decoder:
    def decode(plain: Any, at: str) -> Any:
        try:
            return cls(plain)
        except ValueError:
            known = ", ".join(str(member.value) for member in cls)
            raise CodecError(at, f"{short(plain)} is not one of {known}") from None

    return decode


def _as_list(plain: Any, at: str) -> list[Any]:
    if not isinstance(plain, list):
        raise CodecError(at, f"{short(plain)} is not a list")
    return plain


def _join(at: str, name: str) -> str:
    return f"{at}.{name}" if at and name else at or name


def short(plain: object) -> str:
    """As it is shown in a message."""
    text = repr(plain)
    return text if len(text) <= 60 else text[:57] + "..."
