"""The registry of launchers: ours by name, others by entry point (`ones.launchers`) or file.

A launcher is a class with the methods of `ones.launchers.Launcher` and

    for_service(context, **settings)    class method: a launcher for a service
    stop_workers(context, **settings)   class method, optional: end the workers of a service that is
                                        not running; default: open a launcher and close it
    Settings                            dataclass, optional; each field has a `help`

Fields of `Settings` may have `option` and `metavar`, for an option of `ones up`, and `path`: the
value is a path, relative to the user's working directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ones import extensions
from ones.errors import InvalidSettingError
from ones.extensions import ExtensionPoint, SettingInfo, infos_of, load
from ones.launchers.api import Launcher, LauncherContext

OURS: dict[str, str] = {
    "local": "ones.launchers.local:LocalLauncher",
    "ray": "ones.launchers.ray.launcher:RayLauncher",
    "slurm": "ones.launchers.slurm.launcher:SlurmLauncher",
}
#: settings of our launchers, in modules of their own because every command reads them
SETTINGS: dict[str, str] = {
    "ray": "ones.launchers.ray.settings:RaySettings",
    "slurm": "ones.launchers.slurm.settings:SlurmSettings",
}
#: methods of every launcher
PARTS = (
    "open", "slots", "launch", "stop", "running", "history", "logs", "forget", "close",
    "for_service",
)  # fmt: skip

_LAUNCHERS = ExtensionPoint(
    kind="launcher", plural="launchers", group="ones.launchers", method="launch", ours=OURS
)
names = _LAUNCHERS.names


def create(name: str, context: LauncherContext, /, **settings: object) -> Launcher:
    """Makes a launcher for a service. Raises InvalidSettingError for an unknown name or setting."""
    factory: Any = _find(name)
    _LAUNCHERS.check_settings(name, settings)
    try:
        launcher: Launcher = factory.for_service(context, **settings)
    except (TypeError, ValueError) as problem:
        raise InvalidSettingError(f"launcher {name}: {problem}") from problem
    return launcher


def stop_workers(name: str, context: LauncherContext, /, **settings: object) -> None:
    """Ends all workers of a service that is not running. They save their work first."""
    factory: Any = _find(name)
    if hasattr(factory, "stop_workers"):
        factory.stop_workers(context, **settings)
        return
    launcher: Launcher = factory.for_service(context, **settings)
    launcher.open(lambda event: None)
    launcher.close(kill=True)


def settings_of(name: str) -> list[SettingInfo]:
    """The fields of the launcher's `Settings` class."""
    if name in OURS:
        return infos_of(load(SETTINGS[name])) if name in SETTINGS else []
    return extensions.settings_of(_find(name))


def _find(name: str) -> Any:  # noqa: ANN401  # a class with the methods above
    factory = _LAUNCHERS.find(name)
    missing = [part for part in PARTS if not hasattr(factory, part)]
    if missing:
        problem = f"{getattr(factory, '__name__', factory)} has no {', '.join(missing)}"
        raise InvalidSettingError(f"launcher {name}: {problem}")
    return factory


def with_absolute_paths(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with absolute paths, for a service that runs in another directory."""
    paths = {setting.name for setting in settings_of(name) if setting.metadata.get("path")}
    return {
        key: str(Path(value).expanduser().absolute()) if key in paths and value else value
        for key, value in settings.items()
    }


@dataclass(frozen=True, slots=True)
class LauncherSetting:
    launcher: str
    info: SettingInfo


def service_settings() -> dict[str, LauncherSetting]:
    """Settings of our launchers, by their names in the section `[service]`.

    `ray_address` is the field `address` of ray, unless the field has another name there.
    """
    return {
        info.metadata.get("setting", f"{name}_{info.name}"): LauncherSetting(name, info)
        for name in SETTINGS
        for info in settings_of(name)
    }
