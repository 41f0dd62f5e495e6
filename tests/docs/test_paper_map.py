"""The map from the paper to the code: every name in it exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "paper.md"
PACKAGE = "ones.policies.ones_paper"
NAME = re.compile(r"`((?:\w+\.)+\w+)`")


def names() -> list[str]:
    page = PAGE.read_text(encoding="utf-8")
    _, marked = page.split("<!-- map -->")
    return sorted(set(NAME.findall(marked.split("<!-- /map -->")[0])))


def resolve(name: str) -> object:
    root = "ones" if name.startswith("core.") else PACKAGE
    parts = name.split(".")
    modules = 2 if name.startswith("core.") else 1
    found: object = importlib.import_module(".".join([root, *parts[:modules]]))
    for part in parts[modules:]:
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("name", names())
def test_every_name_of_the_map_exists(name: str) -> None:
    assert resolve(name) is not None


def test_the_map_is_read_and_a_wrong_name_is_found() -> None:
    assert len(names()) > 50
    with pytest.raises(AttributeError):
        resolve("search.no_such_function")


def test_the_map_names_every_module_of_the_package() -> None:
    package = importlib.import_module(PACKAGE)
    modules = {path.stem for path in Path(package.__path__[0]).glob("*.py")}
    assert modules - {"__init__", "notes"} == {
        name.split(".")[0] for name in names() if not name.startswith("core.")
    }
