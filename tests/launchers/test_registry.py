"""Launchers by name, entry point or file."""

from __future__ import annotations

from pathlib import Path

import pytest

from ones.config import ServiceSettings
from ones.control.launching import launcher_of, stop_jobs
from ones.control.statedir import StateDir
from ones.errors import InvalidFileError, InvalidSettingError, UnknownNameError, UserError
from ones.extensions import load
from ones.launchers import Launch, LauncherContext, create, names, settings_of
from ones.launchers.local import LocalLauncher
from ones.launchers.registry import OURS, SETTINGS, service_settings, stop_workers
from tests.processes import alive_below, is_alive, wait_for

MINE = """
from dataclasses import dataclass, field
from ones.launchers.local import LocalLauncher

class Mine(LocalLauncher):
    @dataclass(frozen=True, kw_only=True)
    class Settings:
        level: int = field(default=1, metadata={"help": "how much"})

        def __post_init__(self):
            if self.level < 0:
                raise ValueError(f"level {self.level} is negative")

    @classmethod
    def for_service(cls, context, **settings):
        checked = cls.Settings(**settings)
        launcher = super().for_service(context)
        launcher.settings = checked
        return launcher
"""


@pytest.fixture
def context(tmp_path: Path) -> LauncherContext:
    (tmp_path / "runs").mkdir()
    return LauncherContext(runs=tmp_path / "runs", slots=1)


def test_ours_are_listed_and_have_documented_settings() -> None:
    assert {"local", "ray", "slurm"} <= set(names())
    for name, path in OURS.items():
        if name in SETTINGS:
            assert load(path).Settings is load(SETTINGS[name])  # type: ignore[attr-defined]
        for setting in settings_of(name):
            assert setting.help, f"{name}: {setting.name} has no help"
    assert len(service_settings()) == sum(len(settings_of(name)) for name in SETTINGS)


def test_an_unknown_launcher_or_setting_is_refused_with_a_hint(context: LauncherContext) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown launcher 'rays'; did you mean 'ray'\?"):
        create("rays", context)
    with pytest.raises(UnknownNameError, match="unknown setting of launcher ray 'adress'"):
        create("ray", context, adress="h:1")
    with pytest.raises(UnknownNameError, match="unknown setting of launcher local 'x'"):
        create("local", context, x=1)


def test_without_a_gpu_the_local_launcher_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no GPU was found; offer CPU slots with: ones up --slots"):
        create("local", LauncherContext(runs=tmp_path))


def test_a_launcher_of_another_package_is_found_by_its_entry_point(
    tmp_path: Path, context: LauncherContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other_launcher.py").write_text(MINE)
    info = tmp_path / "other-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ones.launchers]\nmine = other_launcher:Mine\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "mine" in names()
    assert [setting.name for setting in settings_of("mine")] == ["level"]
    launcher = create("mine", context, level=3)
    assert type(launcher).__name__ == "Mine"
    launcher.close(kill=False)


def test_a_file_is_a_launcher(tmp_path: Path, context: LauncherContext) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    launcher = create(str(file), context, level=3)
    assert launcher.settings.level == 3  # type: ignore[attr-defined]
    launcher.close(kill=False)
    with pytest.raises(InvalidSettingError, match=r"mine\.py: level -1 is negative"):
        create(str(file), context, level=-1)
    with pytest.raises(UnknownNameError, match=r"unknown setting of launcher .*mine\.py 'depth'"):
        create(str(file), context, depth=1)


@pytest.mark.parametrize(
    ("text", "problem", "words"),
    [
        ("x = 1\n", InvalidFileError, "has no launcher: a class with a method `launch`"),
        (
            "class Half:\n    def launch(self): ...\n    def open(self): ...\n",
            InvalidSettingError,
            "Half has no slots, stop, running, history, logs, forget, close, for_service",
        ),
    ],
)
def test_what_a_file_lacks_is_named(
    text: str, problem: type[UserError], words: str, tmp_path: Path, context: LauncherContext
) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(problem, match=words):
        create(str(tmp_path / "mine.py"), context)


def test_workers_are_stopped_by_the_launcher_that_started_them(tmp_path: Path) -> None:
    """Without a controller, by what was stored at the last start; here, a launcher in a file."""
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    directory = StateDir(tmp_path / "state")
    directory.make()
    settings = ServiceSettings(launcher=str(file), launchers={str(file): {"level": 2}}, slots=1)
    launcher = launcher_of(settings, directory, str)
    launcher.open(lambda event: None)
    slot = launcher.slots()[0].id
    argv = ("sleep", "1000")
    launcher.launch(Launch(id="1-a", job="j", slots=(slot,), argv=argv, cwd="/", env={}))
    pid = wait_for(lambda: launcher.running()["1-a"].pid)
    assert pid is not None
    launcher.close(kill=False)
    assert is_alive(pid)
    stop_jobs(directory)
    assert not is_alive(pid)
    wait_for(lambda: not alive_below(directory.runs))


def test_a_launcher_without_stop_workers_is_opened_and_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    close = LocalLauncher.close

    def closed(self: LocalLauncher, *, kill: bool) -> None:
        calls.append(f"close {kill}")
        close(self, kill=kill)

    monkeypatch.setattr(LocalLauncher, "open", lambda self, listener: calls.append("open"))
    monkeypatch.setattr(LocalLauncher, "close", closed)
    monkeypatch.delattr(LocalLauncher, "stop_workers")
    stop_workers("local", LauncherContext(runs=tmp_path, slots=1))
    assert calls == ["open", "close True"]
