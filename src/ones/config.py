"""The settings: defaults, then a TOML file, then ONES_* variables, then flags; the last wins.

One frozen tree, with the origin of every value, so that `ones config` can say where a
value comes from. Policies have their own settings (`[policy.NAME]`); they never see
this tree. Nothing is read at import time.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import Any

from ones.errors import InvalidFileError, InvalidSettingError, UnknownNameError, UserError
from ones.policies import settings_of

FILE_NAME = "ones.toml"
PREFIX = "ONES_"
#: variables that begin like ours and are none of the settings
NOT_SETTINGS = frozenset({"ONES_ALL", "ONES_CONFIG", "ONES_URL", "ONES_API_TOKEN"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SimSettings:
    """Defaults of `ones sim` and `ones trace generate`."""

    policy: str = field(default="ones", metadata={"help": "which policy decides"})
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
class ServiceSettings:
    """Of the live service: `ones up`, and where the other commands find it."""

    state: str = field(
        default="", metadata={"help": "directory of all it keeps; empty: one for each user"}
    )
    host: str = field(default="127.0.0.1", metadata={"help": "address it listens on"})
    port: int = field(default=8642, metadata={"help": "port it listens on; 0: a free one"})
    advertise: str = field(
        default="", metadata={"help": "address at which workers on other nodes reach it"}
    )
    launcher: str = field(
        default="local", metadata={"help": "who places processes: local, ray or slurm"}
    )
    ray_address: str = field(default="", metadata={"help": "head of the Ray cluster: host:port"})
    ray_slots: str = field(
        default="GPU", metadata={"help": "resource of Ray that is one slot: GPU or a custom one"}
    )
    ray_per_node: int | None = field(
        default=None, metadata={"help": "slots of each Ray node that are taken at most"}
    )
    ray_token: str = field(default="", metadata={"help": "file with the Ray cluster's token"})
    ray_tls_certificate: str = field(default="", metadata={"help": "PEM file; with it, Ray's TLS"})
    ray_tls_key: str = field(default="", metadata={"help": "PEM file of that certificate's key"})
    ray_tls_ca: str = field(default="", metadata={"help": "PEM file of who signs for Ray's nodes"})
    node_dir: str = field(
        default="/tmp/ones", metadata={"help": "run directories on each node of a cluster"}
    )
    lease_seconds: float = field(
        default=30.0, metadata={"help": "workers of a node that is cut off end after so long"}
    )
    slurm_lead: float = field(
        default=300.0,
        metadata={"help": "seconds before the end of an allocation in which work is saved"},
    )
    slots: int | None = field(
        default=None, metadata={"help": "CPU slots it offers instead of this machine's GPUs"}
    )
    group_size: int = field(
        default=0,
        metadata={
            "help": "so many neighbouring slots of a node are close to one another, as GPUs with"
            " NVLink; 0: as the driver tells"
        },
    )
    checkpoints: str = field(
        default="",
        metadata={"help": "where jobs save work: path or URL; empty: in the state directory"},
    )
    policy: str = field(default="ones", metadata={"help": "which policy decides"})
    seed: int = field(default=0, metadata={"help": "of the policy"})
    mechanism: str = field(
        default="elastic",
        metadata={
            "help": "`elastic`, or `restart`: a job that gets other GPUs is stopped and started"
        },
    )
    database: str = field(
        default="", metadata={"help": "URL of the database; empty: SQLite in the state directory"}
    )
    tls_certificate: str = field(default="", metadata={"help": "PEM file; with it, HTTPS"})
    tls_key: str = field(default="", metadata={"help": "PEM file of the certificate's key"})
    join_seconds: float = field(
        default=300.0, metadata={"help": "how long a script may take until it calls ones.join"}
    )
    grace_seconds: float = field(
        default=10.0, metadata={"help": "between SIGTERM and SIGKILL for a worker"}
    )
    silence_seconds: float = field(
        default=120.0, metadata={"help": "a worker that says nothing for so long is killed"}
    )
    stuck_seconds: float = field(
        default=30.0,
        metadata={"help": "a thread that is busy with one step for longer makes /health 503"},
    )
    min_free_mb: float = field(
        default=200.0, metadata={"help": "with less free disk than this /health is 503"}
    )
    log_format: str = field(
        default="text", metadata={"help": "of the controller's log: `text`, or `json` lines"}
    )
    log_level: str = field(
        default="info", metadata={"help": "least that is logged: debug, info, warning or error"}
    )
    keep_output_days: float = field(
        default=30.0,
        metadata={"help": "output of a job is removed so long after its end; 0: never"},
    )
    keep_checkpoints_days: float = field(
        default=7.0, metadata={"help": "and its checkpoints; 0: never"}
    )
    keep_events_days: float = field(
        default=0.0,
        metadata={"help": "older events go from the database into compressed files; 0: they stay"},
    )
    insecure: bool = field(
        default=False,
        metadata={"help": "no TLS beyond loopback: tokens cross the network in clear text"},
    )
    allowed_hosts: str = field(
        default="",
        metadata={"help": "further names of this service in requests, separated by commas"},
    )
    max_reports_per_request: int = field(
        default=500, metadata={"help": "worker reports in one request"}
    )
    max_reports_per_second: float = field(
        default=100.0, metadata={"help": "reports of a job per second, for each of its workers"}
    )
    max_report_burst: int = field(
        default=1000, metadata={"help": "reports that a job may send at once beyond that rate"}
    )
    max_command_kb: int = field(
        default=128, metadata={"help": "KiB of a job's command, all arguments together"}
    )
    max_environment_kb: int = field(
        default=256, metadata={"help": "KiB of a job's environment, names and values together"}
    )
    max_unfinished_jobs: int = field(
        default=10_000, metadata={"help": "jobs of one user that have not ended"}
    )
    max_output_mb: int = field(
        default=1024,
        metadata={"help": "MB of output that are kept of a job; the oldest is removed first"},
    )
    max_priority: float = field(
        default=100.0, metadata={"help": "priority of users' jobs, from minus this to this"}
    )
    max_connections_per_address: int = field(
        default=2000, metadata={"help": "connections from one address; a worker has 2"}
    )
    max_requests_per_user: int = field(
        default=200, metadata={"help": "requests of one user at the same time"}
    )
    max_header_seconds: float = field(
        default=10.0, metadata={"help": "time in which a request's headers must arrive"}
    )
    max_body_seconds: float = field(
        default=30.0, metadata={"help": "time in which a request's body must arrive"}
    )

    def rooted(self) -> ServiceSettings:
        """Paths from here on: the service lives in a directory of its own."""
        paths: dict[str, Any] = {}
        for name in _PATHS:
            path = getattr(self, name)
            if path and "://" not in path:
                paths[name] = str(Path(path).expanduser().absolute())
        return replace(self, **paths)


_PATHS = (
    "state", "checkpoints", "ray_token", "ray_tls_certificate", "ray_tls_key", "ray_tls_ca",
    "tls_certificate", "tls_key",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    sim: SimSettings = SimSettings()
    service: ServiceSettings = ServiceSettings()
    #: policy name -> its settings
    policy: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Effective:
    """The settings in force, and where each value comes from."""

    settings: Settings
    origins: Mapping[str, str]  # "sim.gpus" -> "ones.toml" | "ONES_SIM_GPUS" | "default" | "--gpus"


#: section of the file -> its settings; `[policy.NAME]` comes beside them
SECTIONS: Mapping[str, type[SimSettings] | type[ServiceSettings]] = {
    "sim": SimSettings,
    "service": ServiceSettings,
}


def load(environment: Mapping[str, str], directory: Path, file: Path | None = None) -> Effective:
    """From the file (`ONES_CONFIG`, or ones.toml in the directory) and the environment."""
    origins = {f"{name}.{f.name}": "default" for name, c in SECTIONS.items() for f in fields(c)}
    values: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    policies: dict[str, dict[str, Any]] = {}
    named = environment.get("ONES_CONFIG")
    path = file or (Path(named) if named else None)
    if path is None and (directory / FILE_NAME).is_file():
        path = directory / FILE_NAME
    if path is not None:
        _take_file(path, values, policies, origins)
    _take_environment(environment, values, origins)
    settings = Settings(
        sim=SimSettings(**values["sim"]),
        service=ServiceSettings(**values["service"]),
        policy=policies,
    )
    return Effective(settings, origins)


def _take_file(
    path: Path,
    values: dict[str, dict[str, Any]],
    policies: dict[str, dict[str, Any]],
    origins: dict[str, str],
) -> None:
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise InvalidFileError(path, f"cannot be read: {problem.strerror}") from problem
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise InvalidFileError(path, f"is not TOML: {problem}") from problem
    for section, table in raw.items():
        if section not in SECTIONS and section != "policy":
            unknown = UnknownNameError("section", section, (*SECTIONS, "policy"))
            raise InvalidFileError(path, str(unknown), field=section)
        if not isinstance(table, dict):
            raise InvalidFileError(path, f"{table!r} is not a section", field=section)
        for key, value in table.items():
            name = f"{section}.{key}"
            try:
                if section in SECTIONS:
                    known = {f.name: str(f.type) for f in fields(SECTIONS[section])}
                    if key not in known:
                        raise UnknownNameError("setting", key, known)
                    values[section][key] = convert(value, known[key])
                    origins[name] = path.name
                elif not isinstance(value, dict):
                    raise InvalidSettingError(f"{value!r} is not a section")
                else:
                    policies[key] = of_policy(key, value)
                    origins.update({f"{name}.{k}": path.name for k in value})
            except UserError as problem:
                raise InvalidFileError(path, str(problem), field=name) from problem


def _take_environment(
    environment: Mapping[str, str], values: dict[str, dict[str, Any]], origins: dict[str, str]
) -> None:
    known = {
        f"{PREFIX}{section.upper()}_{f.name.upper()}": (section, f)
        for section, settings in SECTIONS.items()
        for f in fields(settings)
    }
    ours = tuple(f"{PREFIX}{section.upper()}_" for section in SECTIONS)
    for variable, text in sorted(environment.items()):
        if not variable.startswith(PREFIX) or variable in NOT_SETTINGS:
            continue
        if variable not in known:
            # somebody else's variable is left alone; a slip of the pen is not
            near = get_close_matches(variable, known, n=1, cutoff=0.8)
            if near or variable.startswith(ours):
                raise UnknownNameError("variable", variable, known)
            continue
        section, setting = known[variable]
        try:
            values[section][setting.name] = convert(text, str(setting.type))
        except InvalidSettingError as problem:
            raise InvalidSettingError(f"{variable}: {problem}") from problem
        origins[f"{section}.{setting.name}"] = variable


def of_policy(policy: str, given: Mapping[str, object]) -> dict[str, Any]:
    """Settings of a policy, of the types that it declares."""
    known = {setting.name: setting.type for setting in settings_of(policy)}
    settings = {}
    for key, value in given.items():
        if key not in known:
            raise UnknownNameError(f"setting of policy {policy}", key, known)
        try:
            settings[key] = convert(value, known[key])
        except InvalidSettingError as problem:
            raise InvalidSettingError(f"{key}: {problem}") from problem
    return settings


def convert(value: object, kind: str) -> Any:
    """From TOML or text to the type of a setting; of a type not known here it stays as it is.

    >>> convert("true", "bool"), convert("12", "float"), convert("12", "str")
    (True, 12.0, '12')
    """
    spoken, read = _READERS.get(kind.removesuffix(" | None"), ("", lambda value: value))
    try:
        return read(value)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise InvalidSettingError(f"{value!r} is not {spoken}") from None


def _int(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError
    return int(value)


def _float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError
    number = float(value)
    if not isfinite(number):
        raise ValueError
    return number


def _bool(value: object) -> bool:
    return value if isinstance(value, bool) else {"true": True, "false": False}[str(value)]


def _str(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


_READERS: Mapping[str, tuple[str, Callable[[object], Any]]] = {
    "int": ("a whole number", _int),
    "float": ("a number", _float),
    "bool": ("true or false", _bool),
    "str": ("a text", _str),
}
