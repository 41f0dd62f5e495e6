"""`ones submit --after`, `--array`, `--sweep` and `ones wait`."""

from __future__ import annotations

import pytest

from ones.cli.job_files import sweep_of
from ones.errors import UserError
from tests.cli.test_commands import Ones, ones
from tests.control.inside import Inside

__all__ = ["ones"]


def test_an_array_is_one_row_that_opens(served: Inside, ones: Ones) -> None:
    array = ones("submit", "-g", "1", "--array", "0-2%1", "--", "sleep", "100").out.strip()
    rows = [line for line in ones("ps").out.splitlines() if array in line]
    assert len(rows) == 1
    assert "2 blocked" in rows[0]
    assert f"3 tasks; each of them: ones ps --array {array}" in rows[0]
    opened = ones("ps", "--array", array).out
    assert all(f"{array}_{i}" in opened for i in range(3))
    assert [job["array"] for job in ones("ps", "--json").json] == [array] * 3
    single = ones("submit", "-g", "1", "--", "sleep", "100").out.strip()
    listed = ones("ps", "-n", "2").out
    assert array in listed, "the number counts rows, and the array is one"
    assert single in listed
    assert array not in ones("ps", "-n", "1").out
    assert [job["id"] for job in ones("ps", "-n", "2", "--json").json] == [single, f"{array}_2"]
    ones("cancel", single)
    after = ones("submit", "-g", "1", "--after", f"{array}:any", "--", "true").out.strip()
    held = ones("hold", array)
    assert f"{array}_1: held" in held.out  # the one that runs has a fixed size
    assert ones("cancel", array).out.count("cancelled") == 3
    waited = ones("wait", after)
    assert (waited.code, waited.err) == (0, f"{after}: finished\n")
    assert ones("wait", array + "_1", after).code == 1
    ended = ones("wait", array)
    assert (ended.code, ended.err.count("cancelled")) == (1, 3), "of an array that has ended"
    assert f"{array}_0: cancelled" in ones("cancel", array).out


def test_a_sweep_is_submitted_and_awaited(served: Inside, ones: Ones) -> None:
    found = ones("submit", "-g", "1", "--sweep", "a=1..2", "--sweep", "b=x", "-w", "--", "echo")
    array = found.out.strip()
    assert (found.code, found.err.count(": finished")) == (0, 2)
    assert "--a=2 --b=x" in ones("logs", f"{array}_1").out
    many = ones("submit", "-g", "1", "--array", "1-8", "--", "true").out.strip()
    assert ones("wait", many).code == 0
    job = ones("submit", "-g", "2", "--", "sleep", "100").out.strip()
    late = ones("wait", job, "-t", "0s")
    assert (late.code, late.err) == (1, f"ones: not ended in time: {job}\n")
    assert "unknown job 'none'" in ones("wait", "none").err


@pytest.mark.parametrize("text", ["lr", "lr=", "=1", "s=1..5000"])
def test_a_sweep_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--sweep: "):
        sweep_of([text])
    with pytest.raises(UserError, match="--sweep: "):
        sweep_of(["a=1", "a=2"])
