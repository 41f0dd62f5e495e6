"""Loads the settings from defaults, a TOML file, ONES_* variables and flags; the last one wins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ones.config.settings import ServiceSettings, Settings, SimSettings
from ones.config.values import convert, of_launcher, of_policy, read_toml
from ones.errors import InvalidFileError, InvalidSettingError, UnknownNameError, UserError
from ones.extensions import SettingInfo, infos_of
from ones.launchers.registry import service_settings

FILE_NAME = "ones.toml"
PREFIX = "ONES_"
#: variables with our prefix that are not settings
NOT_SETTINGS = frozenset({"ONES_ALL", "ONES_CONFIG", "ONES_URL", "ONES_API_TOKEN"})


@dataclass(frozen=True, slots=True)
class Effective:
    """The effective settings, and where each value comes from."""

    settings: Settings
    origins: Mapping[str, str]  # "sim.gpus" -> "ones.toml" | "ONES_SIM_GPUS" | "default" | "--gpus"


#: sections of the file besides `[policy.NAME]` and `[launcher.NAME]` -> their settings
SECTIONS: Mapping[str, type[SimSettings] | type[ServiceSettings]] = {
    "sim": SimSettings,
    "service": ServiceSettings,
}
_NAMED = ("launcher", "policy")


def settings_in(section: str) -> dict[str, SettingInfo]:
    """Settings of a section by name. Those of built-in launchers follow `service.launcher`."""
    found: dict[str, SettingInfo] = {}
    for info in infos_of(SECTIONS[section]):
        if info.help:
            found[info.name] = info
        if info.name == "launcher":
            found |= {name: setting.info for name, setting in service_settings().items()}
    return found


def load(
    environment: Mapping[str, str],
    directory: Path,
    file: Path | None = None,
    flags: Mapping[str, Mapping[str, Any]] | None = None,
) -> Effective:
    """The settings from the file (`file`, `ONES_CONFIG` or ones.toml in the directory), the
    environment and the flags (section -> setting -> value)."""
    found = _Found()
    named = environment.get("ONES_CONFIG")
    path = file or (Path(named) if named else None)
    if path is None and (directory / FILE_NAME).is_file():
        path = directory / FILE_NAME
    if path is not None:
        found.take_file(path)
    found.take_environment(environment)
    for section, given in (flags or {}).items():
        for name, value in given.items():
            found.put(section, name, value, "--" + name.replace("_", "-"))
    return found.effective()


class _Found:
    """Collects values with their origins. A later value replaces an earlier one."""

    def __init__(self) -> None:
        self._known = {section: settings_in(section) for section in SECTIONS}
        self._of_launchers = service_settings()
        self._values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
        self._launchers: dict[str, dict[str, Any]] = {}
        self._policies: dict[str, dict[str, Any]] = {}
        self._origins = {
            f"{section}.{name}": "default"
            for section, names in self._known.items()
            for name in names
        }

    def effective(self) -> Effective:
        service = ServiceSettings(**self._values["service"], launchers=self._launchers)
        sim = SimSettings(**self._values["sim"])
        return Effective(Settings(sim=sim, service=service, policy=self._policies), self._origins)

    def put(self, section: str, name: str, value: object, origin: str) -> None:
        owner = self._of_launchers.get(name) if section == "service" else None
        if owner is not None:
            self._launchers.setdefault(owner.launcher, {})[owner.info.name] = value
        else:
            self._values[section][name] = value
        self._origins[f"{section}.{name}"] = origin

    def take_file(self, path: Path) -> None:
        for section, table in read_toml(path).items():
            if section not in SECTIONS and section not in _NAMED:
                unknown = UnknownNameError("section", section, (*SECTIONS, *_NAMED))
                raise InvalidFileError(path, str(unknown), field=section)
            if not isinstance(table, dict):
                raise InvalidFileError(path, f"{table!r} is not a section", field=section)
            for key, value in table.items():
                try:
                    self._take(section, key, value, path.name)
                except UserError as problem:
                    raise InvalidFileError(
                        path, str(problem), field=f"{section}.{key}"
                    ) from problem

    def _take(self, section: str, key: str, value: object, origin: str) -> None:
        if section in SECTIONS:
            if key not in self._known[section]:
                raise UnknownNameError("setting", key, self._known[section])
            self.put(section, key, convert(value, self._known[section][key].type), origin)
        elif not isinstance(value, dict):
            raise InvalidSettingError(f"{value!r} is not a section")
        elif section == "policy":
            self._policies[key] = of_policy(key, value)
            self._origins.update({f"policy.{key}.{name}": origin for name in value})
        else:
            self._launchers.setdefault(key, {}).update(of_launcher(key, value))
            ours = {s.info.name: n for n, s in self._of_launchers.items() if s.launcher == key}
            for name in value:
                shown = f"service.{ours[name]}" if name in ours else f"launcher.{key}.{name}"
                self._origins[shown] = origin

    def take_environment(self, environment: Mapping[str, str]) -> None:
        known = {
            f"{PREFIX}{section.upper()}_{name.upper()}": (section, name)
            for section, settings in self._known.items()
            for name in settings
        }
        ours = tuple(f"{PREFIX}{section.upper()}_" for section in SECTIONS)
        for variable, text in sorted(environment.items()):
            if not variable.startswith(PREFIX) or variable in NOT_SETTINGS:
                continue
            if variable not in known:
                # a variable of another program is ignored; one that looks like ours is an error
                near = get_close_matches(variable, known, n=1, cutoff=0.8)
                if near or variable.startswith(ours):
                    raise UnknownNameError("variable", variable, known)
                continue
            section, name = known[variable]
            try:
                self.put(section, name, convert(text, self._known[section][name].type), variable)
            except InvalidSettingError as problem:
                raise InvalidSettingError(f"{variable}: {problem}") from problem
