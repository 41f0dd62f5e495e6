"""A snapshot of a running service: slots, jobs, latest decisions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ones.lab.service_client import ServiceClient

DECISIONS = 20


@dataclass(frozen=True, slots=True)
class ServiceSnapshot:
    cluster: dict[str, Any]
    jobs: list[dict[str, Any]]  # in order of submission
    decisions: list[dict[str, Any]]  # the newest first

    @property
    def now(self) -> float:
        """Time of the service's clock."""
        return float(self.cluster["now"])


def take_snapshot(client: ServiceClient, *, ended: bool) -> ServiceSnapshot:
    """Read a snapshot from the service; `ended`: also jobs that have ended."""
    return ServiceSnapshot(
        client.get("/api/cluster"),
        list(reversed(client.get("/api/jobs", all="true" if ended else None))),
        client.get("/api/decisions", limit=DECISIONS),
    )
