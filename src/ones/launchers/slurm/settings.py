"""Settings of the Slurm launcher, its timeouts, and its options."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field

from ones.extensions import setting
from ones.launchers.probe import Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSettings:
    lead: float = setting(300.0, "seconds before the end of an allocation in which work is saved")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Timeouts of nodes that do not answer, in seconds."""

    ping: float = 1.0  # between two messages on a connection
    suspect: float = 6.0  # silence after which a node is suspect
    condemn: float = 20.0  # silence after which a node is given up
    lease: float = 15.0  # longest time that its workers run after that
    margin: float = 2.0  # added to the lease before its slots count as free

    @classmethod
    def from_text(cls, text: str) -> Timing:
        return cls(**json.loads(text)) if text else cls()

    @classmethod
    def from_environment(cls) -> Timing:
        return cls.from_text(os.environ.get("ONES_SLURM_TIMING", ""))

    def to_text(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    host: str = "127.0.0.1"  # address on which the controller listens for agents
    advertise: str = ""  # address at which agents reach it, if that is another one
    timing: Timing = field(default_factory=Timing)
    probes: tuple[Probe, ...] = ()  # of directories that every node must see
    open_seconds: float = 0.0  # how long `open` waits for the nodes of allocations
