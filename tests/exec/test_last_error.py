"""The line of an output that says why a process failed: short, plain, and of the last exception."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ones.exec.last_error import MAX_CHARACTERS, error_line, last_error
from ones.exec.output import OutputWriter

CHAINED = """
try:
    {}["lr"]
except KeyError as problem:
    raise ValueError("no learning rate in config.yaml") from problem
"""


@given(st.binary(max_size=400))
@example(b"Traceback (most recent call last):\n")
@example(b"Traceback (most recent call last):\nE: \xff\x1b[31m\x00\x85\n")
def test_any_output_gives_one_short_printable_line(output: bytes) -> None:
    line = error_line(output)
    assert len(line) <= MAX_CHARACTERS
    assert line.isprintable()
    line.encode()


@pytest.mark.parametrize(
    ("output", "line"),
    [
        (b"\x1b[31mError: size mismatch\x1b[0m.\n", "Error: size mismatch"),
        (b"Traceback (most recent call last):\n  f()\nKeyError: 1\nbye\n", "KeyError: 1"),
        (b"Traceback (most recent call last):\n  f()\n    ^^^\ntorch.OutOfMemoryError: CUDA\n",
         "torch.OutOfMemoryError: CUDA"),
        (b"Traceback (most recent call last):\n  f()\nAssertionError\n", "AssertionError"),
        (b"train.sh: pyhton: command not found\n", "train.sh: pyhton: command not found"),
        (b"ones: batch_size 0 is not at least 1\n", ""),
        (b"", ""),
    ],
)  # fmt: skip
def test_the_line_of_a_failure_is_found(output: bytes, line: str) -> None:
    assert error_line(output) == line


def test_a_chained_exception_gives_the_one_that_ended_the_script(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", CHAINED], capture_output=True, check=False, timeout=60
    )
    writer = OutputWriter(tmp_path)
    writer.write(b"epoch 1\n" * 10_000 + ended.stderr)
    writer.close()
    assert last_error(tmp_path) == "ValueError: no learning rate in config.yaml"
