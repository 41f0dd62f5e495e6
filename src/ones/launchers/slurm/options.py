"""Where a controller listens to agents, and what it asks of their nodes."""

from __future__ import annotations

from dataclasses import dataclass, field

from ones.launchers.probe import Probe
from ones.launchers.slurm.shared import Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    host: str = "127.0.0.1"  # where to listen to agents
    advertise: str = ""  # where they find us, if that is another address
    timing: Timing = field(default_factory=Timing)
    probes: tuple[Probe, ...] = ()  # what every node must be able to read
    patience: float = 0.0  # seconds: so long `open` waits for the nodes of allocations
