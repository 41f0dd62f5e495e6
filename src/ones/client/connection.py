"""Where the service is: by ONES_URL and ONES_API_TOKEN, its state directory, or its socket."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ones.config import ServiceSettings, load
from ones.control.statedir import StateDir
from ones.errors import UserError, WorldError
from ones.launchers.launchd_client import HTTP_SOCKET


class Connection(NamedTuple):
    url: str
    token: str
    certificate: str = ""
    socket: str = ""


def find(state: Path | None = None, environment: Mapping[str, str] = os.environ) -> Connection:
    """The service of a state directory; None: that of the settings."""
    url, token = environment.get("ONES_URL"), environment.get("ONES_API_TOKEN")
    if url and token:
        return Connection(url, token)
    flags = {"state": str(state)} if state else {}
    settings = load(environment, Path.cwd(), flags={"service": flags}).settings.service
    directory = StateDir.of(settings.state)
    address = directory.address()
    token = token or directory.read_token()
    if not url and (address is None or not directory.is_locked()):
        socket = Path(settings.socket or HTTP_SOCKET)
        if state is None and socket.is_socket():
            return Connection("http://localhost", token or "", socket=str(socket))
        raise WorldError("no service is running; start it with: ones up")
    if token is None:
        raise UserError(f"{directory.token}: cannot be read; set ONES_API_TOKEN")
    assert url or address is not None
    certificate = trusted_by(directory, settings)
    return Connection(url or (address.url if address else ""), token, certificate)


def trusted_by(directory: StateDir, settings: ServiceSettings) -> str:
    """File of the certificate to trust for the service of a state directory; empty: none."""
    own = directory.authority
    return settings.tls_certificate or (str(own) if own.exists() else "")
