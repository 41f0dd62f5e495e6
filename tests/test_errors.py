"""Errors say what is wrong, by name and value, in whatever process."""

from __future__ import annotations

import pickle

import pytest

from ones.errors import (
    BrokenPolicyError,
    InvalidFileError,
    InvalidJobError,
    OnesError,
    UnknownNameError,
)

ERRORS = [
    (InvalidJobError("bert-7", "base_batch 0 is not at least 1"), 2),
    (InvalidFileError("trace.csv", "'many' is not a number", line=7, field="gpus"), 2),
    (UnknownNameError("policy", "fifoo", ["equi", "fifo"]), 2),
    (BrokenPolicyError("GPU n0/0 was given to job a and to job b"), 70),
]


def test_a_near_name_is_suggested_and_else_all_are_listed() -> None:
    assert str(ERRORS[2][0]) == "unknown policy 'fifoo'; did you mean 'fifo'?"
    assert str(UnknownNameError("policy", "z", ["b", "a"])) == "unknown policy 'z'; known: a, b"
    assert str(UnknownNameError("setting", "z", [])) == "unknown setting 'z'; there are none"
    many = str(UnknownNameError("job", "z", [f"job-{i:04d}" for i in range(1000)]))
    assert many.endswith(" job-0038, job-0039 and 960 more")


def test_a_file_is_named_with_line_and_field_where_they_are_known() -> None:
    assert str(ERRORS[1][0]) == "trace.csv:7: gpus: 'many' is not a number"
    assert str(InvalidFileError("a.csv", "is empty")) == "a.csv: is empty"


@pytest.mark.parametrize(("error", "code"), ERRORS)
def test_an_error_crosses_a_process_border_with_its_message(error: OnesError, code: int) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.exit_code == error.exit_code == code
