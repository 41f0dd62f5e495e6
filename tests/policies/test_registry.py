"""Policies by name; strangers by entry point; slips of the pen by a hint."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ones.errors import InvalidSettingError, UnknownNameError
from ones.policies import create, names


def test_an_unknown_policy_is_refused_with_a_hint() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown policy 'fifoo'; did you mean 'fifo'\?"):
        create("fifoo")


def test_an_unknown_setting_is_refused_with_what_is_known() -> None:
    with pytest.raises(UnknownNameError, match="unknown setting of policy fifo 'speed'"):
        create("fifo", speed=3)


def test_a_value_out_of_range_is_refused_by_name_and_value() -> None:
    with pytest.raises(InvalidSettingError, match=r"policy equi: quantum 0\.5 is not at least 1"):
        create("equi", quantum=0.5)


def test_a_stranger_s_policy_is_found_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "from ones.policies.fifo import Fifo\nclass Mine(Fifo):\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "mine" in names()
    assert type(create("mine", backfill=True)).__name__ == "Mine"


def test_a_stranger_s_policy_that_cannot_be_imported_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "import nothing_of_that_name\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "stranger", raising=False)
    told = r"policy 'mine' \(stranger:Mine\): ModuleNotFoundError: No module named 'nothing_of"
    with pytest.raises(InvalidSettingError, match=told):
        create("mine")


def install(place: Path, module: str) -> None:
    (place / "stranger.py").write_text(module)
    info = place / "stranger-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ones.policies]\nmine = stranger:Mine\n")
