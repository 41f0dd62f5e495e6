"""Interface of the HTTP client that applications and benchmarks use; see `ones.cli.client`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol


class ServiceClient(Protocol):
    def get(self, path: str, **query: Any) -> Any: ...  # noqa: ANN401

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any: ...  # noqa: ANN401


class OpenClient(ServiceClient, Protocol):
    def close(self) -> None: ...


Connect = Callable[[str, str], OpenClient]  # address, token
