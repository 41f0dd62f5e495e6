"""Hand-written markdown keeps to short paragraphs and lines; tables and code are excepted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.build import REFERENCE

ROOT = Path(__file__).resolve().parents[2]
MAX_LINE = 120
MAX_PARAGRAPH = 5  # lines
PAGES = [
    ROOT / "README.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "guides").glob("*.md")),
    *(p for p in sorted((ROOT / "docs" / "reference").glob("*.md")) if p.name not in REFERENCE),
]

_FENCE = re.compile(r"^ *```")
_ITEM = re.compile(r"^ *(?:[-*]|\d+\.) ")
_NO_PROSE = ("|", "#", "<!--", "![")


def paragraphs(text: str) -> Iterator[tuple[int, list[str]]]:
    """Prose with the number of its first line; an item of a list is a paragraph of its own."""
    start, found, in_code = 1, list[str](), False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        is_fence = bool(_FENCE.match(line))
        in_code ^= is_fence
        code = in_code or is_fence or (line.startswith("    ") and not found)
        prose = bool(line.strip()) and not code and not line.lstrip().startswith(_NO_PROSE)
        if found and (not prose or _ITEM.match(line)):
            yield start, found
            found = []
        if prose:
            start = start if found else number
            found.append(line)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_paragraphs_and_lines_are_short(page: Path) -> None:
    name = page.relative_to(ROOT)
    for start, lines in paragraphs(page.read_text(encoding="utf-8")):
        assert len(lines) <= MAX_PARAGRAPH, f"{name}:{start}: a paragraph of {len(lines)} lines"
        for number, line in enumerate(lines, start):
            assert len(line) <= MAX_LINE, f"{name}:{number}: {len(line)} characters"


def test_what_counts_as_a_paragraph() -> None:
    prose = "# Title\none\ntwo\n\n* item\n  more\n* item\n\n"
    text = f"{prose}| a table |\n\n    code\n\n```sh\ncode\n```\nend"
    assert list(paragraphs(text)) == [
        (2, ["one", "two"]),
        (5, ["* item", "  more"]),
        (7, ["* item"]),
        (16, ["end"]),
    ]
