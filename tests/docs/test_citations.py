"""Code that the documentation cites exists: files, and names of modules and classes."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
#: pages that describe the code; changelog and renames cite names of the past
PAGES = [
    DOCS / "architecture.md",
    DOCS / "paper.md",
    *sorted((DOCS / "decisions").glob("0*.md")),
    ROOT / "CONTRIBUTING.md",
]
FILE = re.compile(r"[\w./-]+\.(?:py|md|toml|json|csv)")
NAME = re.compile(r"\.?_?[A-Za-z]\w*(?:\.\w+)*")
DEFINITION = re.compile(
    r"^\s*(?:(?:async )?def |class |self\.)(\w+)|^\s*(\w+)(?:: | = )", re.MULTILINE
)
#: first words that are a variable of a training script, or belong to another library
FOREIGN = ("job", "DDP")


@cache
def files() -> frozenset[str]:
    folders = ("src", "docs", "tests", "tools", "examples")
    return frozenset(
        f"/{path.relative_to(ROOT)}" for folder in folders for path in (ROOT / folder).rglob("*.*")
    )


@cache
def definitions() -> dict[str, set[str]]:
    """Names that a module defines, by the module's path below src/ones without its suffix."""
    home = ROOT / "src" / "ones"
    return {
        str(path.relative_to(home).with_suffix("")).removesuffix("/__init__"): {
            found[1] or found[2] for found in DEFINITION.finditer(path.read_text(encoding="utf-8"))
        }
        for path in home.rglob("*.py")
    }


def problem(span: str) -> str | None:
    """What is wrong with a citation; None if it is right, or is no citation of code."""
    span = span.removesuffix("()").split("(")[0]
    if FILE.fullmatch(span):
        known = any(file.endswith(f"/{span.removeprefix('./')}") for file in files())
        return None if known or (ROOT / span).is_file() else "no such file"
    if not NAME.fullmatch(span) or "." not in span.strip("."):
        return None
    *owners, name = span.strip(".").split(".")
    if owners[0] in FOREIGN:
        return None
    if owners[0] == "ones":
        owners = owners[1:]
    everything = definitions()
    modules = {path for path in everything if f"/{path}".endswith("/" + "/".join(owners))}
    inside = {
        found
        for path, names in everything.items()
        if any(path == module or path.startswith(f"{module}/") for module in modules)
        for found in names
    }
    if owners and modules:
        parts = {path.rpartition("/")[2] for path in everything}
        return None if name in inside or name in parts else f"no {name!r} in it"
    if owners and owners[-1][:1].isupper():  # a class; the member may be inherited
        defined = set().union(*everything.values())
        missing = [part for part in (owners[-1], name) if part not in defined]
        return f"no {', '.join(missing)}" if missing else None
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_code_that_a_page_cites_exists(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    wrong = {span: problem(span) for span in re.findall(r"`([^`\n]+)`", text)}
    assert {span: what for span, what in wrong.items() if what} == {}


@pytest.mark.parametrize(
    ("span", "is_right"),
    [
        ("core/scheduler.py", True),
        ("core/brain.py", False),
        ("core.schedule.Schedule", True),
        ("core.schedule.Timetable", False),
        ("Schedule.of", True),
        ("Brain.handle", False),
        ("JobView.run_seconds_at", True),
        ("service.checkpoints", True),  # a setting
        ("make test", True),
    ],
)
def test_a_citation_is_judged(span: str, is_right: bool) -> None:
    assert (problem(span) is None) is is_right
