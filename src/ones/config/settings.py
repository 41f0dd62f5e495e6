"""The settings of simulations and of the service, with their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ones.extensions import located, setting
from ones.launchers.registry import with_absolute_paths


@dataclass(frozen=True, slots=True, kw_only=True)
class SimSettings:
    """Defaults of `ones sim` and `ones trace generate`."""

    policy: str = setting("ones", "which policy decides")
    gpus: int = setting(64, "GPUs of the cluster")
    gpus_per_node: int = setting(4, "GPUs of each node")
    jobs: int = setting(50, "jobs of a generated workload")
    seed: int = setting(0, "of workload, noise and policy")
    gap: float = setting(12.0, "mean seconds between arrivals, unless load is given")
    scatter: float = setting(0.3, "lognormal sigma of job lengths within a kind")
    mechanism: str = setting("native", "how changes are paid for: native, elastic, checkpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """Of the live service: `ones up`, and where the other commands find it."""

    state: str = setting("", "directory of all it keeps; empty: one for each user")
    host: str = setting("127.0.0.1", "address it listens on")
    port: int = setting(8642, "port it listens on; 0: a free one")
    advertise: str = setting("", "address at which workers on other nodes reach it")
    launcher: str = setting("local", "what places processes: local, ray, slurm or a Python file")
    #: launcher name -> its settings; each is a setting of its own in the file
    launchers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    slots: int | None = setting(None, "CPU slots it offers instead of this machine's GPUs")
    group_size: int = setting(
        0,
        "so many neighbouring slots of a node are close to one another, as GPUs with"
        " NVLink; 0: as the driver tells",
    )
    checkpoints: str = setting(
        "", "where jobs save work: path or URL; empty: in the state directory"
    )
    policy: str = setting("ones", "which policy decides")
    seed: int = setting(0, "of the policy")
    mechanism: str = setting(
        "elastic", "`elastic`, or `restart`: a job that gets other GPUs is stopped and started"
    )
    database: str = setting("", "URL of the database; empty: SQLite in the state directory")
    tls_certificate: str = setting("", "PEM file; with it, HTTPS")
    tls_key: str = setting("", "PEM file of the certificate's key")
    join_seconds: float = setting(300.0, "how long a script may take until it calls ones.join")
    grace_seconds: float = setting(10.0, "between SIGTERM and SIGKILL for a worker")
    silence_seconds: float = setting(120.0, "a worker that says nothing for so long is killed")
    stuck_seconds: float = setting(
        30.0, "a thread that is busy with one step for longer makes /health 503"
    )
    min_free_mb: float = setting(200.0, "with less free disk than this /health is 503")
    log_format: str = setting("text", "of the controller's log: `text`, or `json` lines")
    log_level: str = setting("info", "least that is logged: debug, info, warning or error")
    keep_output_days: float = setting(
        30.0, "output of a job is removed so long after its end; 0: never"
    )
    keep_checkpoints_days: float = setting(7.0, "and its checkpoints; 0: never")
    keep_events_days: float = setting(
        0.0, "older events go from the database into compressed files; 0: they stay"
    )
    insecure: bool = setting(
        False, "no TLS beyond loopback: tokens cross the network in clear text"
    )
    allowed_hosts: str = setting(
        "", "further names of this service in requests, separated by commas"
    )
    max_reports_per_request: int = setting(500, "worker reports in one request")
    max_reports_per_second: float = setting(
        100.0, "reports of a job per second, for each of its workers"
    )
    max_report_burst: int = setting(1000, "reports that a job may send at once beyond that rate")
    max_command_kb: int = setting(128, "KiB of a job's command, all arguments together")
    max_environment_kb: int = setting(256, "KiB of a job's environment, names and values together")
    max_unfinished_jobs: int = setting(10_000, "jobs of one user that have not ended")
    max_output_mb: int = setting(
        1024, "MB of output that are kept of a job; the oldest is removed first"
    )
    max_priority: float = setting(100.0, "priority of users' jobs, from minus this to this")
    max_connections_per_address: int = setting(2000, "connections from one address; a worker has 2")
    max_requests_per_user: int = setting(200, "requests of one user at the same time")
    max_header_seconds: float = setting(10.0, "time in which a request's headers must arrive")
    max_body_seconds: float = setting(30.0, "time in which a request's body must arrive")

    def rooted(self) -> ServiceSettings:
        """With absolute paths: the service runs in a directory of its own."""
        changed: dict[str, Any] = {
            name: str(Path(path).expanduser().absolute())
            for name in ("state", "checkpoints", "tls_certificate", "tls_key")
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
