"""Turns errors of msgspec into messages that name the field, its value and what is expected.

>>> from msgspec import Struct
>>> class Speed(Struct): steps: int
>>> explained("Expected `int` >= 1 - at `$.steps`", Speed, {"steps": 0})
('steps', '0 is not at least 1')
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import inspect

from ones.errors import short
from ones.wire.bounds import FORMS

_PROBLEM = re.compile(r"(?P<what>.*?)(?: - at `(?:key[^`]*` in `)?(?P<path>\$.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]`]+)|\[(\d+)\]|\[\.\.\.\]")
_NAMES = {
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
}
_SHAPES = (
    (r"Expected `str` of length <= (\d+)", "{} is longer than {} characters"),
    (r"Expected `\w+` of length <= (\d+)", "{} has more than {} items"),
    (r"Expected `\w+` of length >= (\d+)", "{} has fewer than {} items"),
    (r"Expected `array` of (?:at least )?length (\d+)\D*.*", "{} does not have {} items"),
    (r"Expected `\w+` >= (\S+)", "{} is not at least {}"),
    (r"Expected `\w+` > (\S+)", "{} is not more than {}"),
    (r"Expected `\w+` <= (\S+)", "{} is more than {}"),
)


def explained(problem: str, kind: Any, plain: object) -> tuple[str, str]:  # noqa: ANN401  # a type
    """The field of a refused value, and what is wrong with it."""
    found = _PROBLEM.fullmatch(problem)
    assert found is not None
    what, path = found["what"], found["path"] or "$"
    value, types, field = plain, [inspect.type_info(kind)], ""
    for name, index in _STEP.findall(path):
        types = _inside(types, name, value)
        field += f".{name}" if name else f"[{index}]" if index else ""
        value = _item(value, name, index)
    if "[...]" in path or "at `key" in problem:  # in a mapping: msgspec does not say where
        return field.removeprefix("."), " ".join(what.split())[:200]
    about = re.fullmatch(
        r"Object (missing required|contains unknown) field `(.*)`", what, re.DOTALL
    )
    if about is not None:
        name = about[2] if about[2].isidentifier() else repr(about[2])
        inner = f"{field}.{name[:60]}".removeprefix(".")
        if about[1] == "contains unknown":
            kind_name = value.get("type") if isinstance(value, dict) else None
            owner = kind_name if isinstance(kind_name, str) and kind_name.isidentifier() else "it"
            return inner, f"{owner} has no such field ({short(_item(value, about[2], ''))})"
        if name == "type":
            return inner, _not_one_of(None, _tags(types))
        return inner, "is missing"
    return field.removeprefix("."), _in_words(what, value, types, field)


def _in_words(what: str, value: object, types: list[Any], field: str) -> str:
    shown = short(value)
    if what.startswith(("Invalid value", "Invalid enum value")) or field.endswith(".type"):
        return _not_one_of(value, _tags(types) if field.endswith(".type") else _choices(types))
    expected = re.fullmatch(r"Expected `([a-z |]+)`(?:, got `\w+`)?", what)
    if expected is not None:
        return f"{shown} is not {' or '.join(_NAMES.get(t, t) for t in expected[1].split(' | '))}"
    matching = re.fullmatch(r"Expected `str` matching regex (.*)", what)
    if matching is not None:
        return f"{shown} is not {_form(types)}"
    for shape, words in _SHAPES:
        bound = re.fullmatch(shape, what)
        if bound is not None:
            return words.format(shown, bound[1] if bound[1].isdecimal() else f"{float(bound[1]):g}")
    if what == "Number out of range":
        return f"{shown} is too large"
    return " ".join(what.split())[:300]  # of a check in Python: it names the value itself


def _not_one_of(value: object, names: list[str]) -> str:
    return f"{short(value)} is not one of {', '.join(names)}"


def _item(value: object, name: str, index: str) -> Any:  # noqa: ANN401  # any JSON value
    if isinstance(value, dict):
        return value.get(name)
    if isinstance(value, list) and index and int(index) < len(value):
        return value[int(index)]
    return None  # of two fields with one name, the refused one is not the one that was parsed


def _options(types: list[Any]) -> list[Any]:
    """The types with unions and annotations resolved."""
    found: list[Any] = []
    for kind in types:
        if isinstance(kind, inspect.UnionType):
            found += _options(list(kind.types))
        elif isinstance(kind, inspect.Metadata):
            found += _options([kind.type])
        else:
            found.append(kind)
    return found


def _inside(types: list[Any], name: str, value: object) -> list[Any]:
    """The possible types of a field or an item; for `type`, the classes that it may name."""
    options = _options(types)
    if name == "type":
        return options
    tag = value.get("type") if isinstance(value, dict) else None
    found: list[Any] = []
    for kind in options:
        if isinstance(kind, inspect.StructType):
            if kind.tag is None or tag is None or kind.tag == tag:
                found += [f.type for f in kind.fields if f.name == name]
        elif isinstance(kind, inspect.VarTupleType | inspect.ListType | inspect.SetType):
            found.append(kind.item_type)
        elif isinstance(kind, inspect.DictType):
            found.append(kind.value_type)
    return found


def _tags(types: list[Any]) -> list[str]:
    return [str(k.tag) for k in _options(types) if isinstance(k, inspect.StructType)]


def _choices(types: list[Any]) -> list[str]:
    found: list[str] = []
    for kind in _options(types):
        if isinstance(kind, inspect.EnumType):
            found += [str(member.value) for member in kind.cls]
        elif isinstance(kind, inspect.LiteralType):
            found += [str(value) for value in kind.values]
        elif isinstance(kind, inspect.FloatType):
            found.append("a number")
    return found


def _form(types: list[Any]) -> str:
    forms = [FORMS[k.pattern] for k in _options(types) if getattr(k, "pattern", None) in FORMS]
    return forms[0] if forms else "of the right form"
