"""The HTTP client of the commands."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ones.cli.settings import effective
from ones.config import ServiceSettings
from ones.errors import UnknownNameError, UserError, WorldError

if TYPE_CHECKING:
    from ones.control.statedir import StateDir

TIMEOUT = 60.0


class Client:
    """Sends requests with a token. Errors are one line: no service, no token, or its response."""

    def __init__(
        self, url: str, token: str, certificate: str = "", *, socket: Path | None = None
    ) -> None:
        """`certificate`: file of a certificate to trust besides those of the machine.

        `socket`: the service's Unix socket, where the kernel says which user calls.
        """
        import httpx

        self.url = str(socket) if socket else url
        self.is_local = socket is not None
        try:
            self._http = httpx.Client(
                base_url=url,
                headers={"Authorization": f"Bearer {token}"} if token else {},
                timeout=TIMEOUT,
                transport=httpx.HTTPTransport(uds=str(socket)) if socket else None,
                verify=_trusting(certificate) if url.startswith("https:") else True,
            )
        except httpx.InvalidURL as problem:
            raise UserError(f"{url}: is not a valid address of a service: {problem}") from problem

    def get(self, path: str, **query: Any) -> Any:  # noqa: ANN401
        return self._read(self._call("GET", path, params=_given(query)))

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:  # noqa: ANN401
        return self._read(self._call("POST", path, json=body))

    def put(self, path: str, body: Mapping[str, Any]) -> Any:  # noqa: ANN401
        return self._read(self._call("PUT", path, json=body))

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:  # noqa: ANN401
        return self._read(self._call("PATCH", path, json=body))

    def delete(self, path: str) -> Any:  # noqa: ANN401
        return self._read(self._call("DELETE", path))

    def bytes(self, path: str, **query: Any) -> tuple[bytes, Mapping[str, str]]:
        answer = self._call("GET", path, params=_given(query))
        return answer.content, answer.headers

    def close(self) -> None:
        self._http.close()

    def _call(self, method: str, path: str, **more: Any) -> Any:  # noqa: ANN401
        import httpx

        try:
            answer = self._http.request(method, path, **more)
        except httpx.TransportError as problem:
            if "CERTIFICATE_VERIFY_FAILED" in str(problem):
                raise WorldError(
                    f"{self.url}: the service's certificate is not trusted ({problem});"
                    " set SSL_CERT_FILE to the file of its authority"
                ) from problem
            raise WorldError(
                f"no service answers at {self.url} ({problem}); start it with: ones up"
            ) from problem
        if answer.is_success:
            return answer
        try:
            text = str(answer.json()["error"])
        except (ValueError, KeyError, TypeError) as problem:
            raise self._not_ones(answer) from problem
        if answer.status_code == 401:
            hint = "" if self.is_local else "; check ONES_API_TOKEN"
            raise UserError(f"{self.url}: {text}{hint}")
        if answer.status_code == 404:
            raise _with_text(UnknownNameError, text)
        if answer.status_code < 500:
            raise UserError(text)
        raise WorldError(f"{self.url}: {text}")

    def _read(self, answer: Any) -> Any:  # noqa: ANN401
        try:
            return answer.json()
        except ValueError as problem:
            raise self._not_ones(answer) from problem

    def _not_ones(self, answer: Any) -> WorldError:  # noqa: ANN401
        status = f"{answer.status_code} {answer.reason_phrase}".strip()
        return WorldError(f"{self.url}: another program answers at this address ({status})")


def of_job(job: str, *more: str) -> str:
    """The URL path of a job. Raises for a text that would lead to another path."""
    if not job or "/" in job or job in (".", ".."):
        raise UserError(f"unknown job {job!r}; list all jobs with: ones ps --all")
    return "/".join(("/api/jobs", *(quote(part, safe="") for part in (job, *more))))


def _trusting(certificate: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if certificate:
        try:
            context.load_verify_locations(cafile=certificate)
        except OSError as problem:
            raise UserError(f"tls_certificate: {certificate}: {problem}") from problem
    return context


def _with_text(kind: type[UserError], text: str) -> UserError:
    """An error with exactly the text of the service."""
    problem = kind.__new__(kind, text)
    problem.args = (text,)
    return problem


def _given(query: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in query.items() if value is not None}


def connect(state: Path | None = None) -> Client:
    """The client of the service: by ONES_URL and ONES_API_TOKEN, or by the state directory."""
    url, token = os.environ.get("ONES_URL"), os.environ.get("ONES_API_TOKEN")
    if url and token:
        return Client(url, token)
    from ones.control.statedir import StateDir
    from ones.launchers.launchd_client import HTTP_SOCKET

    settings = effective(section="service", state=str(state) if state else None).settings
    directory = StateDir.of(settings.service.state)
    address = directory.address()
    token = token or directory.read_token()
    if not url and (address is None or not directory.is_locked()):
        socket = Path(settings.service.socket or HTTP_SOCKET)
        if state is None and socket.is_socket():
            return Client("http://localhost", token or "", socket=socket)
        raise WorldError("no service is running; start it with: ones up")
    if token is None:
        raise UserError(f"{directory.token}: cannot be read; set ONES_API_TOKEN")
    assert url or address is not None
    certificate = trusted_by(directory, settings.service)
    return Client(url or (address.url if address else ""), token, certificate)


def trusted_by(directory: StateDir, settings: ServiceSettings) -> str:
    """File of the certificate to trust for the service of a state directory; empty: none."""
    own = directory.authority
    return settings.tls_certificate or (str(own) if own.exists() else "")
