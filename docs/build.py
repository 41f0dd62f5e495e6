"""`make docs`: writes docs/reference from the code, and the examples into the guides.

Commands, events, columns, settings and errors are taken from the code. Every example is made, read
or run by the code that it shows. `--check` writes nothing and lists the pages that are out of date.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

# so that `docs.reference` is found when this file is run as a script
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from docs.reference.cli import cli_page
from docs.reference.config import config_page
from docs.reference.errors import errors_page
from docs.reference.events import events_page
from docs.reference.http import http_page
from docs.reference.lifecycle import lifecycle_page
from docs.reference.results import results_page
from docs.reference.trace_format import trace_page

HERE = Path(__file__).resolve().parent
GENERATED = "<!-- Generated from the code by `make docs`; changes made here are lost. -->"

REFERENCE: dict[str, Callable[[], str]] = {
    "cli.md": cli_page,
    "config.md": config_page,
    "errors.md": errors_page,
    "events.md": events_page,
    "http.md": http_page,
    "lifecycle.md": lifecycle_page,
    "results.md": results_page,
    "trace-format.md": trace_page,
}


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print("usage: python docs/build.py [--check]", file=sys.stderr)
        return 2
    stale = [(path, text) for path, text in pages() if not _is_current(path, text)]
    for path, text in stale:
        where = path.relative_to(HERE.parent)
        if arguments:
            print(f"{where} is out of date: run `make docs`", file=sys.stderr)
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {where}")
    return 1 if stale and arguments else 0


def pages() -> Iterator[tuple[Path, str]]:
    """Every generated page with its current text."""
    for name, make in REFERENCE.items():
        yield HERE / "reference" / name, f"{GENERATED}\n\n{make()}\n"
    for path in sorted((HERE / "guides").glob("*.md")):
        yield path, with_examples(path.read_text(encoding="utf-8"), path.parent)


def _is_current(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


_MARKED_BLOCK = re.compile(
    r"<!-- (?P<what>include|output|change): (?P<name>\S+) -->\n"
    r"```(?P<language>\w*)\n(?:.*\n)*?```\n"
)


def with_examples(guide: str, home: Path) -> str:
    """The guide with every marked block generated again.

    `<!-- include: FILE -->` precedes a block with the file's text, `<!-- output: FILE -->` a block
    with the output of the file when it is run, `<!-- change: FILE -->` a block with the lines that
    differ from FILE with `_before` in its name, and their numbers.
    """

    def renew(found: re.Match[str]) -> str:
        what, name, language = found["what"], found["name"], found["language"]
        file = home / name
        if what == "include":
            text = file.read_text(encoding="utf-8")
        else:
            text = printed_by(file) if what == "output" else change_of(file)
        return f"<!-- {what}: {name} -->\n```{language}\n{text.rstrip()}\n```\n"

    return _MARKED_BLOCK.sub(renew, guide)


def change_of(script: Path) -> str:
    before = script.with_name(f"{script.stem}_before.py")
    old, new = (path.read_text(encoding="utf-8").splitlines() for path in (before, script))
    lines = list(difflib.unified_diff(old, new, lineterm="", n=0))[2:]
    shown = [line for line in lines if not line.startswith("@@")]
    added = sum(line.startswith("+") for line in shown)
    return "\n".join([f"# {added} lines added, {len(shown) - added} removed", *shown])


def printed_by(script: Path) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as output:
        runpy.run_path(str(script), run_name="__main__")
    return output.getvalue()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
