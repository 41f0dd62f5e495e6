"""What applications and benchmarks need of a client of the service. `ones.cli.client` has one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol


class ServiceClient(Protocol):
    def get(self, path: str, **query: Any) -> Any: ...  # noqa: ANN401

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any: ...  # noqa: ANN401


class OpenClient(ServiceClient, Protocol):
    def close(self) -> None: ...


Connect = Callable[[str, str], OpenClient]  # address, token
