"""Pieces of markdown, and words, that the pages share."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent / "examples"

#: types, as they are called on a page
SPOKEN = {
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
    """As it is made from a heading: small letters, no punctuation, hyphens for blanks."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def same(what: str, written: Iterable[str], real: Iterable[str]) -> None:
    """A page that leaves something out, or speaks of what is no more, is not built."""
    differ = sorted({*written} ^ {*real})
    if differ:
        raise SystemExit(f"docs/reference: {what} to be brought up to date: {', '.join(differ)}")
