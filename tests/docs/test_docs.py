"""The docs are true: links lead somewhere, commands parse, and nothing is left undescribed."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import typing
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from docs import build
from docs.reference.cli import commands, example_of
from docs.reference.errors import descendants
from docs.reference.results import BENCH_KEYS, BENCH_ROW_KEYS, REPLAY_KEYS, RUN_KEYS, TRACE_KEYS
from ones.cli.app import app
from ones.config import PREFIX, SimSettings
from ones.core.events import Event
from ones.core.plan import Action
from ones.errors import OnesError
from ones.policies import names, settings_of
from ones.workload import COLUMNS, paper_numbers

ROOT = Path(__file__).resolve().parents[2]
ROOT_PAGES = (
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "RELEASING.md"),
    *("SECURITY.md", "CODE_OF_CONDUCT.md"),
)
PAGES = [
    *(ROOT / name for name in ROOT_PAGES),
    *sorted((ROOT / "docs").rglob("*.md")),
]
COMMANDS = dict(commands(typer.main.get_group(app)))

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def reference(name: str) -> str:
    return (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")


# how markdown is read

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
SHELL = ("", "sh", "bash", "shell", "console")


def links(page: Path) -> Iterator[str]:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    yield from re.findall(r"\]\(([^)\s]+)(?: \"[^\"]*\")?\)", text)
    yield from re.findall(r"<(?:img|a|source)\b[^>]*?(?:src|srcset|href)=\"([^\"]+)\"", text)


def anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub makes them; a second one of the same name gets -1."""
    found: dict[str, int] = {}
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for title in re.findall(r"^#{1,6} +(.+?) *#*$", text, re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        name = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        found[name] = found.get(name, -1) + 1
        if found[name]:
            found[f"{name}-{found[name]}"] = 0
    return set(found) | set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))


def shell_lines(page: Path) -> Iterator[str]:
    """What a reader would type: lines of shell blocks, joined where they go on."""
    for _, language, body in FENCE.findall(page.read_text(encoding="utf-8")):
        if language in SHELL:
            for line in re.sub(r"\\\n\s*", " ", body).splitlines():
                yield line.strip().removeprefix("$ ")


def simple_commands(line: str) -> Iterator[list[str]]:
    """The words of each command of a line: without its variables, redirections and comments."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    skip = False
    for word in [*lexer, ";"]:
        if set(word) <= set("|&;"):
            if words:
                yield words
            words = []
        elif set(word) <= set("<>"):
            skip = True
        elif skip:
            skip = False
        elif words or not re.fullmatch(r"[A-Z_]+=.*", word):
            words.append(word)


# the pages


@every_page
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link}: there is no such file"
        assert ROOT in target.parents, f"{link}: leads out of the repository"
        if anchor:
            assert anchor in anchors(target), f"{link}: there is no such heading"


@every_page
def test_every_command_that_is_shown_can_be_typed(page: Path) -> None:
    for line in shell_lines(page):
        if not re.search(r"\bones ", line):
            continue
        for words in simple_commands(line):
            if words[0] in ("ones", ".venv/bin/ones"):
                check_command(words[1:], line)


def check_command(words: list[str], line: str) -> None:
    name = "ones"
    while words and any(f"{known} ".startswith(f"{name} {words[0]} ") for known in COMMANDS):
        name, words = f"{name} {words[0]}", words[1:]
    if name not in COMMANDS:  # a group, or `ones` itself: with nothing but its own options
        allowed = ("--help", "-h", "--version", "--install-completion", "--show-completion")
        assert words, f"{line!r}: no command"
        assert words[0] in allowed, f"{line!r}: there is no command {words[0]!r}"
        return
    try:
        COMMANDS[name].make_context(name, list(words))  # parses, and runs nothing
    except typer.Exit:
        pass  # --help
    except Exception as problem:
        pytest.fail(f"{line!r}: {problem}")


@pytest.mark.parametrize(
    "words", ["fly", "trace", "tra generate", "sim --wings", "sim --gpus many", "replay", "sim x"]
)
def test_a_command_that_cannot_be_typed_is_found(words: str) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check_command(words.split(), words)


@every_page
def test_every_make_target_that_is_named_exists(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    spans = re.findall(r"`(?:[A-Z_]+=\S+ )*make ([a-z-]+)`", page.read_text(encoding="utf-8"))
    typed = [
        words[1]
        for line in shell_lines(page)
        if re.search(r"\bmake ", line)
        for words in simple_commands(line)
        if words[0] == "make" and len(words) > 1
    ]
    assert {*spans, *typed} <= targets


#: a path of one machine, or the host of a package registry
LOCAL = re.compile(r"/(?:work|root|home)/|\bpypi\.org\b", re.IGNORECASE)


def test_no_page_or_example_names_a_machine_path_or_a_registry_host() -> None:
    examples = [p for kind in ("py", "csv", "toml") for p in (ROOT / "docs").rglob(f"*.{kind}")]
    for path in (*PAGES, *examples):
        found = LOCAL.search(path.read_text(encoding="utf-8"))
        assert found is None, f"{path.relative_to(ROOT)} contains {found[0]!r}"


@every_page
def test_a_page_begins_with_its_title(page: Path) -> None:
    text = re.sub(r"<!--.*?-->\s*", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert re.match(r"# \S|<(?:h1|p|div|picture|img)\b", text)


# the reference


def test_the_reference_is_up_to_date() -> None:
    script = ROOT / "docs" / "build.py"
    checked = subprocess.run(
        [sys.executable, script, "--check"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr


def test_a_stale_page_is_named_and_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    docs = tmp_path / "docs"
    (docs / "reference").mkdir(parents=True)
    (docs / "guides").mkdir()
    (docs / "guides" / "hello.py").write_text("print('hello')\n")
    guide = docs / "guides" / "guide.md"
    guide.write_text("# A guide\n\n<!-- output: hello.py -->\n```text\nstale\n```\n\nThe end.\n")
    monkeypatch.setattr(build, "HERE", docs)
    assert build.main(["--check"]) == 1
    assert "stale" in guide.read_text()
    assert build.main([]) == 0
    assert "```text\nhello\n```\n\nThe end.\n" in guide.read_text()
    assert build.main(["--check"]) == 0
    (docs / "reference" / "errors.md").write_text("something else")
    capsys.readouterr()
    assert build.main(["--check"]) == 1
    assert capsys.readouterr().err == "docs/reference/errors.md is out of date: run `make docs`\n"
    assert (docs / "reference" / "errors.md").read_text() == "something else"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_an_example_and_a_place_in_the_reference(name: str) -> None:
    command = COMMANDS[name]
    assert command.help
    text = reference("cli.md")
    section = text.split(f"\n## {name}\n", 1)[1].split("\n## ", 1)[0]
    assert f"\n{example_of(name, command)}\n" in section
    check_command(shlex.split(example_of(name, command))[1:], name)
    for parameter in command.params:
        assert getattr(parameter, "help", None), f"{name}: {parameter.name} has no help"
        shown = parameter.opts if parameter.param_type_name == "option" else [str(parameter.name)]
        for option in shown:
            assert f"`{option}`" in section or f"`{option.upper()}`" in section


def test_every_setting_is_in_the_reference() -> None:
    text = reference("config.md")
    for field in fields(SimSettings):
        assert f"`sim.{field.name}`" in text
        assert f"`{PREFIX}SIM_{field.name.upper()}`" in text
    for policy in names():
        for setting in settings_of(policy):
            assert f"`policy.{policy}.{setting.name}`" in text


def test_every_event_and_order_is_in_the_reference() -> None:
    text = reference("events.md")
    for kind in (*typing.get_args(Event), *typing.get_args(Action)):
        assert f"\n### {kind.__name__}\n" in text
        assert f'"type":"{kind.__name__}"' in text


def test_every_column_and_model_is_in_the_reference() -> None:
    text = reference("trace-format.md")
    for name in (*(column.name for column in COLUMNS), *paper_numbers().kinds):
        assert f"| `{name}` |" in text


def test_every_error_is_in_the_reference() -> None:
    text = reference("errors.md")
    for name in ("OnesError", *(kind.__name__ for kind in descendants(OnesError))):
        assert f"| `{name}` |" in text


# machine-readable output has the keys that the reference promises


def printed_as_json(*arguments: str) -> dict[str, typing.Any]:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0
    printed: dict[str, typing.Any] = json.loads(result.stdout)
    return printed


def test_runs_replays_and_traces_have_the_promised_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trace = str(ROOT / "docs" / "reference" / "examples" / "trace.csv")
    row = printed_as_json("sim", "--workload", trace, "--gpus", "8", "--out", "run", "--json")
    assert set(row) == set(RUN_KEYS)
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == row
    assert set(printed_as_json("replay", "run/run.jsonl", "--json")) == set(REPLAY_KEYS)
    assert set(printed_as_json("trace", "inspect", trace, "--json")) == set(TRACE_KEYS)
    assert set(printed_as_json("config", "--json")) == {"settings", "policies"}


def test_the_benchmark_has_the_promised_keys() -> None:
    measured = printed_as_json("bench", "sim", "--gpus", "4,8", "--jobs", "3,3", "--json")
    assert set(measured) == set(BENCH_KEYS)
    for row in measured["rows"]:
        assert set(row) == set(BENCH_ROW_KEYS)
