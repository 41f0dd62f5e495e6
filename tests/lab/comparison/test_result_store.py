"""Stored results: one by one, cut off, foreign files, locks."""

from __future__ import annotations

from pathlib import Path

import pytest

from ones.errors import InvalidFileError, UserError
from ones.lab.comparison.result_store import FILE_NAME, ResultStore, locked


def test_results_are_kept_one_by_one_and_read_again(tmp_path: Path) -> None:
    kept = ResultStore(tmp_path)
    kept.add("a", "first", {"row": {"x": 1.5}})
    kept.add("b", "second", {"row": {"x": None}})
    again = ResultStore(tmp_path)
    assert len(again) == 2
    assert again["a"] == {"row": {"x": 1.5}}
    assert "c" not in again


def test_a_line_that_was_cut_off_is_no_result(tmp_path: Path) -> None:
    ResultStore(tmp_path).add("a", "first", {"row": 1})
    with (tmp_path / FILE_NAME).open("a") as file:
        file.write('{"key": "b", "name": "sec')
    torn = ResultStore(tmp_path)
    assert ("a" in torn, "b" in torn) == (True, False)
    torn.add("c", "third", {"row": 3})
    again = ResultStore(tmp_path)
    assert {key for key in "abc" if key in again} == {"a", "c"}


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('{"key": "a", "name": "x", "row": 1}\nhello\n')
    with pytest.raises(InvalidFileError, match=r"rows.jsonl:2: is not a result"):
        ResultStore(tmp_path)


def test_two_comparisons_cannot_write_to_one_directory(tmp_path: Path) -> None:
    with locked(tmp_path / "out") as home:
        with pytest.raises(UserError, match="another comparison"), locked(home):
            pass
        (tmp_path / "file").write_text("")
    with locked(home), pytest.raises(InvalidFileError), locked(tmp_path / "file"):
        pass
