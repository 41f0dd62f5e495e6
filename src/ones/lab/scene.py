"""What there is to see of a running service at a moment: slots, jobs, what was decided last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

DECISIONS = 20


class Client(Protocol):
    """Who talks to the service."""

    def get(self, path: str, **query: Any) -> Any: ...  # noqa: ANN401

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any: ...  # noqa: ANN401


@dataclass(frozen=True, slots=True)
class Scene:
    cluster: dict[str, Any]
    jobs: list[dict[str, Any]]  # in order of submission
    decisions: list[dict[str, Any]]  # the newest first

    @property
    def now(self) -> float:
        """By the service's clock."""
        return float(self.cluster["now"])


def look(client: Client, *, ended: bool) -> Scene:
    """As the service tells it; with the jobs that have ended, or without."""
    return Scene(
        client.get("/api/cluster"),
        list(reversed(client.get("/api/jobs", all="true" if ended else None))),
        client.get("/api/decisions", limit=DECISIONS),
    )
