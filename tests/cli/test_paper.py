"""`ones paper` as its users meet it; the page itself is tested in tests/lab."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ones.cli import main
from ones.lab.paper import sweeps as sweeps_module


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "0"], "--seeds: 0 is not at least 1"),
        (["--processes", "0"], "--processes: 0 is not at least 1"),
        (["--first-seed", "-1"], "--first-seed: -1 is negative"),
        (["--out", "file"], "file: is a file, not a directory"),
        (["--sweeps", "none"], "none/sweeps.json: cannot be read: No such file or directory"),
        (["sweeps", "--seeds", "0"], "--seeds: 0 is not at least 1"),
        (["sweeps", "--only", "load"], "unknown sweep 'load'; did you mean 'loads'?"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(sys, "argv", ["ones", "paper", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    err = capsys.readouterr().err
    assert left.value.code == 2
    assert err == f"ones: {message}\n"


def told(out: str) -> list[str]:
    """All but when it was measured, and under which load."""
    return [line for line in out.splitlines() if not line.startswith("Measured ")]


def test_sweeps_run_are_told_and_go_on_where_they_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny = replace(sweeps_module.QUICK, jobs=2, seeds=1)
    monkeypatch.setattr(sweeps_module, "QUICK", tiny)
    monkeypatch.setattr(sweeps_module, "RIVALS", ("ones", "equi"))

    def run(*arguments: str) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", ["ones", "paper", "sweeps", "--quick", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        assert left.value.code == 0
        return capsys.readouterr()

    out, _ = run("--list", "--only", "kinds", "--out", "there")
    assert out.count("ones compare ") == 5
    assert "--hide-kinds" in out
    assert "--own-kinds" in out
    asked = ("--only", "kinds", "--out", "there", "--processes", "1")
    out, err = run(*asked)
    assert "20 runs: about" in err
    assert "| kinds hidden |" in out
    assert "| own kinds |" in out
    assert {path.name for path in Path("there").iterdir()} >= {
        "rows.jsonl", "sweeps.json", "sweeps.md", "sweeps.html",
    }  # fmt: skip
    again, err = run(*asked)
    assert told(again) == told(out)
    assert "20 runs, 20 of them already stored" in err
