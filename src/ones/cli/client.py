"""The HTTP client of the commands: plain JSON, as it is printed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ones.client.connection import find, trusted_by
from ones.client.transport import check, given, of_job, options_of, plain, unreachable
from ones.errors import UserError

if TYPE_CHECKING:
    from ones.client.snapshot import Step

__all__ = ["Client", "connect", "of_job", "trusted_by"]


class Client:
    """Sends requests with a token. Errors are one line: no service, no token, or its response."""

    def __init__(self, url: str, token: str, certificate: str = "", socket: str = "") -> None:
        """`certificate`: file of a certificate to trust besides those of the machine.

        `socket`: the service's Unix socket, where the kernel says which user calls.
        """
        import httpx

        self.url, self.is_local = socket or url, bool(socket)
        transport = httpx.HTTPTransport(uds=socket) if socket else None
        try:
            self._http = httpx.Client(**options_of(url, token, certificate), transport=transport)
        except httpx.InvalidURL as problem:
            raise UserError(f"{url}: is not a valid address of a service: {problem}") from problem

    def get(self, path: str, **query: Any) -> Any:  # noqa: ANN401
        return plain(self.url, self._call("GET", path, params=given(query)))

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:  # noqa: ANN401
        return plain(self.url, self._call("POST", path, json=body))

    def put(self, path: str, body: Mapping[str, Any]) -> Any:  # noqa: ANN401
        return plain(self.url, self._call("PUT", path, json=body))

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:  # noqa: ANN401
        return plain(self.url, self._call("PATCH", path, json=body))

    def send(self, step: Step) -> Any:  # noqa: ANN401
        call = self._call(step.method, step.path, params=dict(step.query), content=step.content)
        return plain(self.url, call)

    def delete(self, path: str) -> Any:  # noqa: ANN401
        return plain(self.url, self._call("DELETE", path))

    def bytes(self, path: str, **query: Any) -> tuple[bytes, Mapping[str, str]]:
        answer = self._call("GET", path, params=given(query))
        return answer.content, answer.headers

    def close(self) -> None:
        self._http.close()

    def _call(self, method: str, path: str, **more: Any) -> Any:  # noqa: ANN401
        import httpx

        try:
            answer = self._http.request(method, path, **more)
        except httpx.TransportError as problem:
            raise unreachable(self.url, problem) from problem
        check(self.url, answer)
        return answer


def connect(state: Path | None = None) -> Client:
    """The client of the service: by ONES_URL and ONES_API_TOKEN, or by the state directory."""
    return Client(*find(state))
