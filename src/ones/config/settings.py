"""The settings of simulations and of the service, with their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ones.extensions import located
from ones.launchers.registry import with_absolute_paths


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
    #: launcher name -> its settings; each is a setting of its own in the file
    launchers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
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
