"""Slots of this machine, and a scratch directory for every worker in TMPDIR."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from ones.extensions import setting
from ones.launchers import Launch, LauncherContext
from ones.launchers.local import LocalLauncher


class Scratch(LocalLauncher):
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Settings:
        directory: str = setting("/var/tmp/ones", "scratch directory of workers", path=True)

    directory = ""

    @classmethod
    def for_service(cls, context: LauncherContext, **settings: Any) -> Self:
        launcher = super().for_service(context)
        launcher.directory = cls.Settings(**settings).directory
        Path(launcher.directory).mkdir(parents=True, exist_ok=True)
        return launcher

    def launch(self, launch: Launch) -> None:
        super().launch(self._with_scratch(launch))

    def prepare(self, launch: Launch) -> None:
        super().prepare(self._with_scratch(launch))

    def _with_scratch(self, launch: Launch) -> Launch:
        return replace(launch, env={**launch.env, "TMPDIR": self.directory})
