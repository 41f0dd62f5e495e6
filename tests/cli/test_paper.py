"""`ones paper` as its users meet it; the page itself is tested in tests/lab."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ones.cli import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "0"], "--seeds: 0 is not at least 1"),
        (["--processes", "0"], "--processes: 0 is not at least 1"),
        (["--first-seed", "-1"], "--first-seed: -1 is negative"),
        (["--out", "file"], "file: is a file, not a directory"),
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
    monkeypatch.setattr(sys, "argv", ["ones", "paper", "--quick", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    err = capsys.readouterr().err
    assert left.value.code == 2
    assert err == f"ones: {message}\n"
