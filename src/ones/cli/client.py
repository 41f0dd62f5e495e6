"""The service as the commands reach it: by its address and a token, over HTTP."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ones.cli.settings import effective
from ones.errors import UnknownNameError, UserError, WorldError

TIMEOUT = 60.0


class Client:
    """One line says what is wrong: no service, no token, or what the service answered."""

    def __init__(self, url: str, token: str, certificate: str = "") -> None:
        """`certificate`: a file of one that is trusted besides those of the machine."""
        import httpx

        self.url = url
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=TIMEOUT,
            verify=_trusting(certificate) if url.startswith("https:") else True,
        )

    def get(self, path: str, **query: Any) -> Any:  # noqa: ANN401
        return self._call("GET", path, params=_given(query)).json()

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:  # noqa: ANN401
        return self._call("POST", path, json=body).json()

    def put(self, path: str, body: Mapping[str, Any]) -> Any:  # noqa: ANN401
        return self._call("PUT", path, json=body).json()

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:  # noqa: ANN401
        return self._call("PATCH", path, json=body).json()

    def delete(self, path: str) -> Any:  # noqa: ANN401
        return self._call("DELETE", path).json()

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
                    f"{self.url}: its certificate is not trusted here ({problem});"
                    " name a file with its authority in SSL_CERT_FILE"
                ) from problem
            raise WorldError(
                f"no service answers at {self.url} ({problem}); start it with: ones up"
            ) from problem
        if answer.is_success:
            return answer
        try:
            text = str(answer.json()["error"])
        except (ValueError, KeyError, TypeError):
            text = answer.text.strip() or answer.reason_phrase
        if answer.status_code == 401:
            raise UserError(f"{self.url}: {text}; is ONES_API_TOKEN right?")
        if answer.status_code == 404:
            raise _said(UnknownNameError, text)
        if answer.status_code < 500:
            raise UserError(text)
        raise WorldError(f"{self.url}: {text}")


def _trusting(certificate: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if certificate:
        try:
            context.load_verify_locations(cafile=certificate)
        except OSError as problem:
            raise UserError(f"tls_certificate: {certificate}: {problem}") from problem
    return context


def _said(kind: type[UserError], text: str) -> UserError:
    """The service's own words, without ours around them."""
    problem = kind.__new__(kind, text)
    problem.args = (text,)
    return problem


def _given(query: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in query.items() if value is not None}


def connect(state: Path | None = None) -> Client:
    """By ONES_URL and ONES_API_TOKEN, or as the state directory says."""
    url, token = os.environ.get("ONES_URL"), os.environ.get("ONES_API_TOKEN")
    if url and token:
        return Client(url, token)
    from ones.control.statedir import StateDir

    settings = effective(section="service", state=str(state) if state else None).settings
    directory = StateDir.of(settings.service.state)
    address = directory.address()
    token = token or directory.read_token()
    if not url and (address is None or not directory.is_locked()):
        raise WorldError("no service is running; start it with: ones up")
    if token is None:
        raise UserError(f"{directory.token}: no token there; set ONES_API_TOKEN")
    assert url or address is not None
    certificate = settings.service.tls_certificate
    return Client(url or (address.url if address else ""), token, certificate)
