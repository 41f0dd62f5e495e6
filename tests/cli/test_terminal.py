"""Text of other users in a terminal: seen, never obeyed; colours of training output stay."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from ones.apps.service_snapshot import ServiceSnapshot
from ones.cli import cluster as cluster_commands
from ones.cli import jobs as job_commands
from ones.cli import top as top_command
from ones.cli.joblist import job_table
from ones.cli.output import print_table, say
from ones.cli.screen import picture
from ones.cli.terminal import OutputFilter, visible

EVIL = "/[/x]\x1b]0;owned\x07\x1b[2J\x9b1m\u202e[red]"
SEEN = "/[/x]\\x1b]0;owned\\x07\\x1b[2J\\x9b1m\\u202e[red]"


def card(**more: Any) -> dict[str, Any]:
    return {
        "id": "a-1", "name": EVIL, "owner": "ann", "state": "failed", "elastic": True, "gpus": 0,
        "batch": None, "epochs": 0, "planned_epochs": None, "loss": None, "accuracy": None,
        "submitted_at": 0.0, "ended_at": 5.0, "eta": None, "eta_low": None, "eta_high": None,
        "message": EVIL, "note": EVIL, "queue_seconds": 1.0, "run_seconds": 2.0, "command": [EVIL],
        "env": {}, "files": {}, "workers": [], "tags": [EVIL], "cwd": EVIL, "git": EVIL,
        "snapshot": None, "root": None, **more,
    }  # fmt: skip


class Service:
    """Answers as a service with one hostile job does."""

    url = "http://127.0.0.1:1"

    def get(self, path: str, **query: Any) -> Any:  # noqa: ANN401
        slot = {
            "id": "local/0", "node": "local", "name": EVIL, "state": "up", "job": "a-1",
            "owner": "ann", "batch": 8, "aside": EVIL, "group": None, "leaving": False,
            "used_by": [],
        }  # fmt: skip
        answers: dict[str, Any] = {
            "/api/jobs": [card()],
            "/api/jobs/a-1": card(ended_at=None),
            "/api/jobs/a-1/launches": [
                {"id": EVIL, "slots": ["local/0"], "ended": EVIL, "alive": False}
            ],
            "/api/jobs/a-1/utilisation": {
                "workers": [
                    {
                        "gpu": EVIL, "utilisation": 0.5, "memory_mb": 1.0, "power_watts": None,
                        "cpus": 1.0, "step_seconds": 0.1, "slowdown": 1.0, "idle_seconds": None,
                    }
                ]
            },
            "/api/jobs/a-1/story": [{"at": 0.0, "kind": "start", "text": EVIL}],
            "/api/cluster": {
                "slots": [slot],
                "nodes": [{"name": "local", "gpus": 1, "state": "up", "reason": EVIL}],
                "unfit": {"n1": EVIL},
                "slurm_auto": {
                    "max_nodes": 1, "nodes": 0, "time": EVIL, "pending": [EVIL], "running": [],
                    "problem": EVIL, "retry_seconds": 1.0,
                },
                "running": 1, "waiting": 0, "policy": "fifo", "now": 9.0,
            },
            "/api/decisions": [
                {"actions": [{"job": "a-1", "text": EVIL}], "notes": {}, "at": 1.0, "number": 1}
            ],
        }  # fmt: skip
        return answers[path]


def is_safe(text: str) -> bool:
    return not any(mark in text for mark in ("\x1b]", "\x1b[2J", "\x07", "\x9b", "\u202e"))


@pytest.mark.parametrize("terminal", [False, True])
def test_commands_show_what_others_wrote_and_do_not_obey_it(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(state: object = None) -> Service:
        return Service()

    for module in (job_commands, cluster_commands, top_command):
        monkeypatch.setattr(module, "connect", connect)
    monkeypatch.setenv("COLUMNS", "500")

    class Context:
        invoked_subcommand = None

    commands: list[Callable[[], object]] = [
        lambda: job_commands.ps(all=True),
        lambda: job_commands.show("a-1"),
        lambda: job_commands.why("a-1"),
        lambda: cluster_commands.show(Context()),  # type: ignore[arg-type]
        lambda: top_command.top(once=True, interval=1.0),
    ]
    for command in commands:
        printed, beside = io.StringIO(), io.StringIO()
        monkeypatch.setattr(printed, "isatty", lambda: terminal, raising=False)
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(beside):
            command()
        text = printed.getvalue() + beside.getvalue()
        assert is_safe(text), text
        assert SEEN[:20] in text, text


def test_tables_pictures_and_hints_are_safe(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(file=io.StringIO(), width=300)
    console.print(job_table([card()], 300, now=9.0))
    service = Service()
    snapshot = ServiceSnapshot(service.get("/api/cluster"), [card()], service.get("/api/decisions"))
    console.print(picture(snapshot, EVIL, 300))
    print_table(EVIL, [EVIL], [[EVIL]])
    say(EVIL)
    text = console.file.getvalue() + "".join(capsys.readouterr())  # type: ignore[attr-defined]
    assert is_safe(text)
    assert text.count(SEEN) >= 6


def test_an_error_of_the_service_is_shown_the_same_way(capsys: pytest.CaptureFixture[str]) -> None:
    from ones.cli import _print_error

    _print_error(f"unknown job {EVIL}")
    assert capsys.readouterr().err == f"ones: unknown job {SEEN}\n"


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        (b"\x1b[1;31mred\x1b[0m\r\n", b"\x1b[1;31mred\x1b[0m\r\n"),
        (b"50%\x1b[K\r60%", b"50%\x1b[K\r60%"),
        (b"a\x1b]0;title\x07b\x1b]52;c;cGFzdGU=\x1b\\c", b"abc"),
        (b"a\x1b[2J\x1b[H\x1b[10A\x1b[6nb", b"ab"),
        (b"a\x1bPq#0\x1b\\b\x1b(0c\x1bcd", b"abcd"),
        (b"\x05\x07\x0e ok\ttab\b", b" ok\ttab\b"),
        ("é\x9b2Jü".encode(), "é2Jü".encode()),
        (b"never ended \x1b]0;x", b"never ended ]0;x"),
        (b"\x1b[31", b"[31"),
    ],
)
def test_output_keeps_text_and_colours(output: bytes, shown: bytes) -> None:
    whole = OutputFilter()
    assert whole.feed(output) + whole.end() == shown
    pieces = OutputFilter()
    one_by_one = b"".join(pieces.feed(output[i : i + 1]) for i in range(len(output)))
    assert one_by_one + pieces.end() == shown


@given(st.lists(st.binary(max_size=20), max_size=6))
@example([b"\x1b", b"]0;", b"\x07"])
@example([b"\x1b]" + b"x" * 5000])
def test_nothing_dangerous_passes_however_it_is_cut(parts: list[bytes]) -> None:
    kept = OutputFilter()
    shown = b"".join(map(kept.feed, parts)) + kept.end()
    for rest in shown.split(b"\x1b")[1:]:
        assert rest[:1] == b"[", shown
        body = rest[1:].lstrip(b"0123456789;:")
        assert body[:1] in (b"m", b"K"), shown
    assert not any(bytes([c]) in shown for c in (5, 7, 14, 127))


def test_logs_are_filtered_for_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from ones.cli.logs import _Lines

    raw = b"\x1b]0;t\x07\x1b[32mgreen\x1b[0m\n"
    for filtered, shown in ((False, raw), (True, b"\x1b[32mgreen\x1b[0m\n")):
        for mark in (b"", b"[n0/0] "):
            printed = io.TextIOWrapper(io.BytesIO())
            monkeypatch.setattr(sys, "stdout", printed)
            lines = _Lines(filtered=filtered)
            lines.write("p", mark, raw[:3])
            lines.write("p", mark, raw[3:])
            lines.end("p")
            assert printed.buffer.getvalue() == mark + shown


def test_what_is_written_can_be_read() -> None:
    assert visible("plain text, é, 日本") == "plain text, é, 日本"
    assert visible("\ud800") == "\\ud800"
