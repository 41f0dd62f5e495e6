"""A description of the HTTP API, made from its OpenAPI document, for the reference page and for
`/docs`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_WORDS = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "null": "null",
    "object": "object",
}


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    kind: str  # type as text
    default: str  # empty: required in a request, always present in a response
    about: str


@dataclass(frozen=True, slots=True)
class Operation:
    method: str
    path: str
    about: str
    parameters: tuple[Field, ...]
    body: str  # name of a shape; empty: none
    answers: tuple[tuple[str, str, str], ...]  # (status, shape or content type, description)

    @property
    def title(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True, slots=True)
class Shape:
    name: str
    about: str
    fields: tuple[Field, ...]


def operations_of(openapi: Mapping[str, Any]) -> list[Operation]:
    return [
        _operation(method.upper(), path, plain)
        for path, methods in openapi["paths"].items()
        for method, plain in methods.items()
    ]


def shapes_of(openapi: Mapping[str, Any]) -> list[Shape]:
    """Objects of requests and responses, by name, without those of FastAPI."""
    shapes = openapi["components"]["schemas"]
    return [
        Shape(name, shapes[name].get("description", ""), tuple(_fields(shapes[name])))
        for name in sorted(shapes)
        if "ValidationError" not in name
    ]


def _operation(method: str, path: str, plain: Mapping[str, Any]) -> Operation:
    parameters = tuple(
        Field(
            p["name"],
            f"{in_words(p['schema'])}, in the {p['in']}",
            "" if p.get("required") else _default(p["schema"]),
            p.get("description", "") or p["schema"].get("description", ""),
        )
        for p in plain.get("parameters", ())
    )
    body = ""
    if "requestBody" in plain:
        schema = plain["requestBody"]["content"]["application/json"]["schema"]
        body = in_words(schema).removesuffix(", or null")  # a body may be left out
    answers = []
    for status, answer in sorted(plain["responses"].items()):
        kinds = [
            in_words(content["schema"]) if content.get("schema") else kind
            for kind, content in answer.get("content", {}).items()
        ]
        answers.append((status, kinds[0] if kinds else "", answer.get("description", "")))
    return Operation(method, path, plain.get("description", ""), parameters, body, tuple(answers))


def _fields(shape: Mapping[str, Any]) -> Iterator[Field]:
    needed = shape.get("required", ())
    for name, inner in shape.get("properties", {}).items():
        default = "" if name in needed else _default(inner)
        yield Field(name, in_words(inner), default, inner.get("description", ""))


def _default(shape: Mapping[str, Any]) -> str:
    value = shape.get("default")
    if value is None:
        return "null" if "default" in shape or "anyOf" in shape else "empty"
    return str(value).lower() if isinstance(value, bool) else str(value) or '""'


def in_words(shape: Mapping[str, Any]) -> str:
    """The type of a JSON schema as text.

    >>> in_words({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]})
    'whole number from 1, or null'
    >>> in_words({"type": "array", "items": {"$ref": "#/components/schemas/JobShown"}})
    'list of JobShown'
    """
    if "$ref" in shape:
        return str(shape["$ref"]).rsplit("/", 1)[1]
    if "anyOf" in shape:
        return ", or ".join(in_words(inner) for inner in shape["anyOf"])
    kind = shape.get("type", "")
    if kind == "array":
        return f"list of {in_words(shape.get('items', {})) or 'anything'}"
    if kind == "object" and isinstance(shape.get("additionalProperties"), dict):
        return f"object of {in_words(shape['additionalProperties'])}"
    words = _WORDS.get(kind, "anything")
    if shape.get("minimum", -1) >= 0:
        words += f" from {shape['minimum']:g}"
    elif "exclusiveMinimum" in shape:
        words += f" above {shape['exclusiveMinimum']:g}"
    return words
