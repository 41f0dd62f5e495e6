"""Policies by name; strangers by entry point or file; slips of the pen by a hint."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ones.errors import InvalidFileError, InvalidSettingError, UnknownNameError
from ones.policies import create, located, names, settings_of


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


def test_a_file_is_a_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    policy_in(tmp_path / "mine.py")
    policy_in(tmp_path / "deeper" / "mine.py", name="Other")
    assert type(create("mine.py", backfill=True)).__name__ == "Mine"
    assert type(create("deeper/mine.py")).__name__ == "Other"
    assert [setting.name for setting in settings_of("mine.py")] == ["backfill"]
    assert type(create("mine.py")) is type(create(str(tmp_path / "mine.py")))
    assert located("mine.py") == str(tmp_path / "mine.py")
    assert located("fifo") == "fifo"
    with pytest.raises(UnknownNameError, match=r"unknown setting of policy mine\.py 'speed'"):
        create("mine.py", speed=3)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "cannot be read: No such file or directory"),
        ("class Mine(:\n", r"SyntaxError: invalid syntax \(mine\.py, line 1\)"),
        ("\nimport nothing_of_that_name\n", r"ModuleNotFoundError: .*that_name' \(mine\.py:2\)"),
        ("\n\nleast = 1 / 0\n", r"ZeroDivisionError: division by zero \(mine\.py:3\)"),
        ("from ones.policies.fifo import Fifo\n", "has no policy: a class with a method `decide`"),
        (
            "class B:\n    def decide(self): ...\nclass A(B):\n    pass\n",
            r"has several policies \(A, B\); prefix all but one with _",
        ),
    ],
)
def test_a_file_without_a_policy_is_one_line(
    tmp_path: Path, text: str | None, complaint: str
) -> None:
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InvalidFileError, match=rf"mine\.py: {complaint}"):
        create(str(file))


def test_what_a_policy_lacks_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "class Mine:\n"
        "    def __init__(self, *, seed): self.decides_on = frozenset()\n"
        "    def decide(self, view): ...\n"
    )
    told = r"mine\.py: Mine has no native_mechanism, observe, save, load"
    with pytest.raises(InvalidSettingError, match=told):
        create(str(file))


def policy_in(file: Path, *, name: str = "Mine") -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"from ones.policies.fifo import Fifo\nclass {name}(Fifo):\n    pass\n")


def install(place: Path, module: str) -> None:
    (place / "stranger.py").write_text(module)
    info = place / "stranger-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ones.policies]\nmine = stranger:Mine\n")
