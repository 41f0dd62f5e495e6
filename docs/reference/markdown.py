"""Helpers for markdown that all generated pages use."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent / "examples"

#: names of types on a page
TYPE_NAMES = {
    "int": "whole number",
    "float": "number",
    "str": "text",
    "bool": "true or false",
    "Path": "path",
}


def page(*parts: str) -> str:
    return "\n\n".join(part.strip() for part in parts if part.strip())


def table(heads: list[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def block(language: str, text: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"


def code(value: object) -> str:
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def anchor(title: str) -> str:
    """The anchor of a heading: lower case, no punctuation, hyphens for spaces."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def same(what: str, written: Iterable[str], real: Iterable[str]) -> None:
    """Exits with an error if the page omits a name, or has one that does not exist."""
    differ = sorted({*written} ^ {*real})
    if differ:
        raise SystemExit(f"docs/reference: {what} out of date: {', '.join(differ)}")
