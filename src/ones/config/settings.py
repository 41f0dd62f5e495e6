"""The settings of simulations and of the service, with their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ones.errors import InvalidSettingError
from ones.extensions import located, setting
from ones.launchers.registry import with_absolute_paths

#: bounds of the half-life of fair share, in hours
MIN_HALF_LIFE, MAX_HALF_LIFE = 0.001, 1e6
HALF_LIFE = (
    "half-life of past GPU use, which lowers the priority of its user's jobs, in hours, such as"
    " 168; 0: past use does not count"
)


def half_life_seconds(hours: float) -> float:
    """The setting `fair_share_half_life_hours` in seconds."""
    if not (hours == 0 or MIN_HALF_LIFE <= hours <= MAX_HALF_LIFE):
        raise InvalidSettingError(
            f"fair_share_half_life_hours: {hours:g} is neither 0 nor from {MIN_HALF_LIFE:g}"
            f" to {MAX_HALF_LIFE:g}"
        )
    return hours * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimSettings:
    """Defaults of `ones sim` and `ones trace generate`."""

    policy: str = setting("ones", "scheduling policy")
    gpus: int = setting(64, "GPUs of the cluster")
    gpus_per_node: int = setting(4, "GPUs of each node")
    jobs: int = setting(50, "jobs of a generated workload")
    seed: int = setting(0, "seed of workload, noise and policy")
    gap: float = setting(12.0, "mean seconds between arrivals, unless load is given")
    scatter: float = setting(0.3, "lognormal sigma of job lengths within a kind")
    mechanism: str = setting(
        "native", "cost model of rescales: native, elastic, checkpoint, suspend"
    )
    fair_share_half_life_hours: float = setting(0.0, HALF_LIFE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """Settings of the live service: `ones up`, and where the other commands find it."""

    state: str = setting("", "state directory of the service; empty: one for each user")
    host: str = setting("127.0.0.1", "address that the service listens on")
    port: int = setting(8642, "port that the service listens on; 0: a free one")
    advertise: str = setting("", "address at which workers on other nodes reach the service")
    launcher: str = setting("local", "what starts workers: local, ray, slurm or a Python file")
    #: launcher name -> its settings; the file has each as a setting of its own
    launchers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    slots: int | None = setting(None, "CPU slots to offer instead of this machine's GPUs")
    group_size: int = setting(
        0,
        "number of neighbouring slots of a node that form a group, like GPUs with NVLink;"
        " 0: as the driver reports",
    )
    checkpoints: str = setting(
        "", "path or URL for the checkpoints of jobs; empty: in the state directory"
    )
    policy: str = setting("ones", "scheduling policy")
    seed: int = setting(0, "seed of the policy")
    mechanism: str = setting(
        "elastic", "`elastic`, or `restart`: stop and start a job to change its GPUs"
    )
    database: str = setting("", "URL of the database; empty: SQLite in the state directory")
    tls_certificate: str = setting("", "PEM file of the certificate; with it the service uses TLS")
    tls_key: str = setting("", "PEM file of the certificate's key")
    join_seconds: float = setting(300.0, "maximum time until a script calls ones.join")
    grace_seconds: float = setting(10.0, "time between SIGTERM and SIGKILL for a worker")
    silence_seconds: float = setting(120.0, "a worker without a request for this time is killed")
    stuck_seconds: float = setting(
        30.0, "/health is 503 if a thread is busy with one step for longer"
    )
    min_free_mb: float = setting(200.0, "/health is 503 with less free disk space (MB)")
    log_format: str = setting("text", "format of the controller's log: `text`, or `json` lines")
    log_level: str = setting("info", "lowest level that is logged: debug, info, warning or error")
    keep_output_days: float = setting(
        30.0, "days after a job's end until its output is removed; 0: never"
    )
    keep_checkpoints_days: float = setting(
        7.0, "days after a job's end until its checkpoints are removed; 0: never"
    )
    keep_events_days: float = setting(
        0.0, "days until events move from the database into compressed files; 0: never"
    )
    insecure: bool = setting(
        False, "no TLS beyond loopback: tokens cross the network in clear text"
    )
    launchd: str = setting(
        "",
        "socket of ones-launchd, which starts each job as its Unix user; `none`: do not use it;"
        " empty: the installed one, if there is one",
    )
    socket: str = setting(
        "", "Unix socket for users of this machine, without a token; empty: with ones-launchd"
    )
    trusting: bool = setting(
        False, "allow several users although all jobs run as the user of the service"
    )
    job_memory_gb: float = setting(
        0.0, "memory of a job for each of its slots, with ones-launchd; 0: an equal share (GB)"
    )
    job_processes: int = setting(4096, "maximum number of processes of a job, with ones-launchd")
    fair_share_half_life_hours: float = setting(0.0, HALF_LIFE)
    keep_environments: bool = setting(
        False, "keep the environment of a job in the database after its end"
    )
    whatif_cpu_seconds: float = setting(
        600.0, "CPU time of a what-if replay after which it is ended"
    )
    allowed_hosts: str = setting(
        "", "further host names of the service in requests, separated by commas"
    )
    max_reports_per_request: int = setting(500, "maximum number of worker reports in one request")
    max_reports_per_second: float = setting(
        100.0, "maximum number of reports of a job per second, for each of its workers"
    )
    max_report_burst: int = setting(1000, "reports that a job may send at once beyond that rate")
    max_command_kb: int = setting(128, "maximum size of a job's command with arguments, in KiB")
    max_environment_kb: int = setting(
        256, "maximum size of a job's environment, names and values, in KiB"
    )
    max_snapshot_mb: float = setting(
        100.0, "maximum size of the files that `ones submit --snapshot` packs, in MB"
    )
    max_unfinished_jobs: int = setting(10_000, "maximum number of unfinished jobs of one user")
    max_output_mb: int = setting(
        1024, "maximum output that is kept of a job, in MB; the oldest is removed first"
    )
    max_priority: float = setting(100.0, "priorities of users' jobs are from minus this to this")
    idle_below_percent: float = setting(
        5.0,
        "a worker that keeps less of its GPU busy than this is idle (%); on CPU slots: of"
        " its share of the CPUs",
    )
    idle_warn_minutes: float = setting(
        30.0, "warn of a job when one of its GPUs is idle for this time; 0: never"
    )
    idle_end_minutes: float = setting(
        0.0, "end a job when all of its GPUs are idle for this time; 0: never"
    )
    slow_worker_percent: float = setting(
        30.0,
        "warn of a worker if its own steps take longer than those of its peers by this (%);"
        " 0: never",
    )
    slow_worker_minutes: float = setting(5.0, "time for which a worker must be that slow")
    max_connections_per_address: int = setting(
        2000, "maximum number of connections from one address; a worker has 2"
    )
    max_requests_per_user: int = setting(200, "maximum number of simultaneous requests of one user")
    max_header_seconds: float = setting(10.0, "time in which a request's headers must arrive")
    max_body_seconds: float = setting(30.0, "time in which a request's body must arrive")

    def rooted(self) -> ServiceSettings:
        """The settings with absolute paths: the service runs in a directory of its own."""
        changed: dict[str, Any] = {
            name: str(Path(path).expanduser().absolute())
            for name in ("state", "checkpoints", "tls_certificate", "tls_key", "socket")
            if (path := getattr(self, name)) and "://" not in path
        }
        launchers = {
            located(name): with_absolute_paths(name, given)
            for name, given in self.launchers.items()
        }
        return replace(self, launcher=located(self.launcher), launchers=launchers, **changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    sim: SimSettings = SimSettings()
    service: ServiceSettings = ServiceSettings()
    #: policy name -> its settings
    policy: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
