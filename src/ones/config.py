"""The settings: defaults, then a TOML file, then ONES_* variables, then flags; the last wins.

One frozen tree, with the origin of every value, so that `ones config` can say where a
value comes from. Policies have their own settings (`[policy.NAME]`); they never see
this tree. Nothing is read at import time.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ones.errors import InvalidFileError, InvalidSettingError, UnknownNameError

FILE_NAME = "ones.toml"
PREFIX = "ONES_"
#: variables that begin like ours and are none of the settings
NOT_SETTINGS = frozenset({"ONES_ALL", "ONES_CONFIG"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SimSettings:
    """Defaults of `ones sim` and `ones trace generate`."""

    policy: str = field(default="equi", metadata={"help": "which policy decides"})
    gpus: int = field(default=64, metadata={"help": "GPUs of the cluster"})
    gpus_per_node: int = field(default=4, metadata={"help": "GPUs of each node"})
    jobs: int = field(default=50, metadata={"help": "jobs of a generated workload"})
    seed: int = field(default=0, metadata={"help": "of workload, noise and policy"})
    gap: float = field(
        default=12.0, metadata={"help": "mean seconds between arrivals, unless load is given"}
    )
    scatter: float = field(
        default=0.3, metadata={"help": "lognormal sigma of job lengths within a kind"}
    )
    mechanism: str = field(
        default="native", metadata={"help": "how changes are paid for: native, elastic, checkpoint"}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    sim: SimSettings = SimSettings()
    #: policy name -> its settings
    policy: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Effective:
    """The settings in force, and where each value comes from."""

    settings: Settings
    origins: Mapping[str, str]  # "sim.gpus" -> "ones.toml" | "ONES_SIM_GPUS" | "default" | "--gpus"


def load(environment: Mapping[str, str], directory: Path, file: Path | None = None) -> Effective:
    """From the file (`ONES_CONFIG`, or ones.toml in the directory) and the environment."""
    origins = {f"sim.{f.name}": "default" for f in fields(SimSettings)}
    values: dict[str, Any] = {}
    policies: dict[str, dict[str, Any]] = {}
    path = file or (Path(environment["ONES_CONFIG"]) if "ONES_CONFIG" in environment else None)
    if path is None and (directory / FILE_NAME).is_file():
        path = directory / FILE_NAME
    if path is not None:
        _take_file(path, values, policies, origins)
    _take_environment(environment, values, origins)
    return Effective(Settings(sim=SimSettings(**values), policy=policies), origins)


def _take_file(
    path: Path,
    values: dict[str, Any],
    policies: dict[str, dict[str, Any]],
    origins: dict[str, str],
) -> None:
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise InvalidFileError(path, f"cannot be read: {problem.strerror}") from problem
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise InvalidFileError(path, f"is not TOML: {problem}") from problem
    known = {f.name: f for f in fields(SimSettings)}
    for section, table in raw.items():
        if section not in ("sim", "policy"):
            raise InvalidFileError(
                path, str(UnknownNameError("section", section, ("sim", "policy"))), field=section
            )
        if not isinstance(table, dict):
            raise InvalidFileError(path, f"{table!r} is not a section", field=section)
        for key, value in table.items():
            name = f"{section}.{key}"
            if section == "policy":
                if not isinstance(value, dict):
                    raise InvalidFileError(path, f"{value!r} is not a section", field=name)
                policies[key] = value
                origins.update({f"{name}.{k}": path.name for k in value})
                continue
            if key not in known:
                raise InvalidFileError(
                    path, str(UnknownNameError("setting", key, known)), field=name
                )
            try:
                values[key] = _convert(key, value, str(known[key].type))
            except InvalidSettingError as problem:
                raise InvalidFileError(path, str(problem)) from problem
            origins[name] = path.name


def _take_environment(
    environment: Mapping[str, str], values: dict[str, Any], origins: dict[str, str]
) -> None:
    known = {f"{PREFIX}SIM_{f.name.upper()}": f for f in fields(SimSettings)}
    for variable, text in sorted(environment.items()):
        if not variable.startswith(PREFIX) or variable in NOT_SETTINGS:
            continue
        if variable not in known:
            # somebody else's variable is left alone; a slip of the pen is not
            near = get_close_matches(variable, known, n=1, cutoff=0.8)
            if near:
                raise UnknownNameError("variable", variable, known)
            continue
        setting = known[variable]
        values[setting.name] = _convert(variable, text, str(setting.type))
        origins[f"sim.{setting.name}"] = variable


def _convert(name: str, value: object, kind: str) -> Any:
    """From TOML or text to the type of the setting."""
    wrong = InvalidSettingError(f"{name}: {value!r} is not {_SPOKEN[kind]}")
    if isinstance(value, bool):
        raise wrong
    if isinstance(value, str) and kind != "str":
        try:
            return int(value) if kind == "int" else float(value)
        except ValueError:
            raise wrong from None
    if kind == "float" and isinstance(value, int):
        return float(value)
    if type(value).__name__ != kind:
        raise wrong
    return value


_SPOKEN = {"int": "a whole number", "float": "a number", "str": "a text"}
