"""Comments, docstrings, texts and markdown are free of the old dialect, up to a limit per area."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]

PHRASES = (
    "who|whom|whose|whoever|nobody|somebody|anybody|everybody|lest|one's|said of|is told|are told"
    "|stands? still|of no account|so many|those to come|sent away"
)
DIALECT = re.compile(rf"\b(?:{PHRASES})\b".replace(" ", r"\s+"), re.IGNORECASE)

#: most matches that an area may have; lower a limit when an area is rewritten, never raise one
LIMITS = {"src": 0, "markdown": 11, "scripts": 0, "tests": 5}

#: uPlot is another project's code
EXCLUDED = ("src/ones/control/page/static/uplot",)
TEXT_SUFFIXES = {".css", ".html", ".js", ".md", ".mako", ".sql", ".toml"}


class Match(NamedTuple):
    line: int
    phrase: str


def in_text(text: str) -> Iterator[Match]:
    for found in DIALECT.finditer(text):
        yield Match(text.count("\n", 0, found.start()) + 1, " ".join(found[0].split()))


def in_python(source: str) -> Iterator[Match]:
    """Matches in comments and in strings that hold a space: docstrings, help texts, messages."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield from (Match(token.start[0], found[0]) for found in DIALECT.finditer(token.string))
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if " " not in node.value:
            continue
        span = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for found in DIALECT.finditer(node.value):
            # a string may be joined from several literals: look its first word up in the source
            word = found[0].split()[0]
            line = next((i for i in span if word in lines[i - 1]), node.lineno)
            yield Match(line, " ".join(found[0].split()))


def matches(path: Path) -> list[Match]:
    text = path.read_text(encoding="utf-8")
    if not DIALECT.search(text):
        return []  # most files; parsing them all takes a minute
    is_python = path.suffix == ".py" or text.startswith("#!/usr/bin/env python3")
    return sorted(set(in_python(text) if is_python else in_text(text)))


def files(area: str) -> list[Path]:
    match area:
        case "src":
            found = [p for p in (ROOT / "src").rglob("*") if p.suffix in {".py", *TEXT_SUFFIXES}]
        case "markdown":
            found = [*ROOT.glob("*.md"), *(ROOT / ".github").rglob("*.md")]
            found += [p for folder in ("docs", "examples") for p in (ROOT / folder).rglob("*.md")]
        case "scripts":
            found = [p for folder in ("docs", "examples") for p in (ROOT / folder).rglob("*.py")]
            found += [p for p in (ROOT / "tools").iterdir() if p.is_file()]
        case _:
            found = [p for p in (ROOT / "tests").rglob("*.py") if p != Path(__file__).resolve()]
    names = {p: p.relative_to(ROOT).as_posix() for p in found}
    return sorted(p for p, name in names.items() if not name.startswith(EXCLUDED))


@pytest.mark.parametrize(("area", "limit"), LIMITS.items())
def test_an_area_stays_within_its_limit_of_dialect(area: str, limit: int) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{match.line}: {match.phrase}"
        for path in files(area)
        for match in matches(path)
    ]
    assert len(found) <= limit, f"{len(found)} matches, limit {limit}:\n" + "\n".join(found)


def test_every_area_has_files() -> None:
    assert all(files(area) for area in LIMITS)
    assert not any("uplot" in path.as_posix() for path in files("src"))


SAMPLE = '''"""The job that everybody
waits for, of no
account."""

who = nobody = "nobody"  # a name and a key are code; lest this comment be missed
HELP = ("at most "
        "so many GPUs")
'''


def test_comments_docstrings_and_texts_are_scanned_and_code_is_not() -> None:
    assert sorted(in_python(SAMPLE)) == [
        Match(1, "everybody"),
        Match(2, "of no account"),
        Match(5, "lest"),
        Match(7, "so many"),
    ]


def test_markdown_is_scanned_with_phrases_that_wrap() -> None:
    text = "# Title\n\nThe job stands\nstill. Whole words only: wholesale, so manyfold, lesten.\n"
    assert list(in_text(text)) == [Match(3, "stands still")]
