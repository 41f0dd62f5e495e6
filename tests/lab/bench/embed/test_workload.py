"""Workloads of Pollux, and files that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from ones.errors import InvalidFileError
from ones.lab.bench.embed.workload import read, without_kinds

DATA = Path(__file__).parents[3] / "data"


def test_workloads_of_pollux_can_be_read_and_bad_ones_are_named(tmp_path: Path) -> None:
    jobs = read(DATA / "pollux.csv", 1)
    assert jobs[0].job.id == "cifar10-0"
    assert jobs[0].job.submitted_at == 107.0
    assert {t.job.kind for t in without_kinds(jobs)} == {""}
    path = tmp_path / "bad.csv"
    for text, message in (
        ("name,time\na,1\n", "bad.csv:1: has no column application"),
        ("name,time,application\na,1,cifra10\n", "bad.csv:2: unknown application 'cifra10'"),
        ("name,time,application\na,soon,ncf\n", "bad.csv:2: time: 'soon' is not at least 0"),
        ("name,time,application\n", "bad.csv: holds no job"),
    ):
        path.write_text(text)
        with pytest.raises(InvalidFileError, match=message):
            read(path, 1)
    with pytest.raises(InvalidFileError, match=r"none\.csv: cannot be read"):
        read(tmp_path / "none.csv", 1)
