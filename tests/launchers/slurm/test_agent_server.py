"""Whatever comes to the port of the agents, the launcher's thread goes on."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ones.exec.line_protocol import MAX_UNAUTHENTICATED_LINE
from ones.launchers import LauncherEvent, Slot, SlotUp
from ones.launchers.slurm.launcher import SlurmLauncher
from ones.launchers.slurm.secure_connection import AGENT, SecureConnection
from ones.launchers.slurm.settings import SlurmOptions, Timing
from ones.launchers.slurm.shared_directory import SharedDirectory
from tests.exec.test_line_protocol import BAD
from tests.processes import wait_for


class Server:
    def __init__(self, root: Path) -> None:
        self.shared = SharedDirectory(root)
        self.events: list[LauncherEvent] = []
        timing = Timing(ping=0.2)
        self.launcher = SlurmLauncher(root, SlurmOptions(host="127.0.0.1", timing=timing))
        self.launcher.open(self.events.append)

    def connect(self) -> socket.socket:
        address = self.shared.address()
        assert address is not None
        return socket.create_connection(("127.0.0.1", address.port), timeout=30)

    def welcomed(self, node: str = "n1") -> socket.socket:
        """The controller has answered the first line."""
        sock = self.connect()
        sock.sendall(json.dumps({"node": node, "nonce": "0" * 32}).encode() + b"\n")
        assert set(json.loads(sock.makefile("rb").readline())) == {"nonce"}
        return sock

    def authenticated(self, node: str = "n1") -> SecureConnection:
        """Connects as an agent with the key; the next line is the registration."""
        connection = SecureConnection(self.connect())
        connection.send({"node": node, "nonce": connection.nonce})
        key, messages = self.shared.key(), list[dict[str, Any]]()

        def is_welcome() -> bool:
            for message in connection.receive():
                if not messages:
                    connection.secure(key, AGENT, node, message["nonce"])
                messages.append(message)
            return len(messages) == 2

        wait_for(is_welcome)
        assert messages[1]["do"] == "welcome"
        connection.send({"event": "hello"})
        return connection

    def works(self, node: str = "good") -> SecureConnection:
        connection = self.authenticated(node)
        slot = {"node": node, "index": 0, "used_by": []}
        pad = "x" * (4 * MAX_UNAUTHENTICATED_LINE)  # more than is read before authentication
        connection.send({"allocation": "7", "ending": False, "slots": [slot], "launches": [],
                         "trouble": "", "pad": pad})  # fmt: skip
        wait_for(lambda: SlotUp(Slot(node=node, index=0)) in self.events, str(self.events))
        return connection


def is_closed(sock: socket.socket) -> bool:
    with suppress(ConnectionError):
        while sock.recv(65536):
            pass
    return True  # else recv would have timed out


def is_refused(connection: SecureConnection) -> bool:
    def closed() -> bool:
        list(connection.receive())
        return connection.closed

    wait_for(closed)
    connection.close()
    return True


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "runs")
    yield server
    server.launcher.close(kill=False)


@pytest.mark.parametrize("name", BAD)
def test_a_caller_without_the_key_cannot_stop_the_launcher(name: str, server: Server) -> None:
    for sock in (server.connect(), server.welcomed()):
        with sock:
            with suppress(ConnectionError):
                sock.sendall(BAD[name])
            assert is_closed(sock)
    server.works().close()


@pytest.mark.parametrize(
    "first",
    [
        {},
        {"node": ""},
        {"node": "../x", "nonce": "0" * 32},
        {"node": "n" * 300, "nonce": "0" * 32},
        {"node": ["n1"], "nonce": "0" * 32},
        {"node": "n\n1", "nonce": "0" * 32},
        {"node": "n1", "nonce": "0" * 32 * MAX_UNAUTHENTICATED_LINE},
    ],
)
def test_a_first_line_that_is_none_is_refused(first: dict[str, Any], server: Server) -> None:
    with server.connect() as sock:
        sock.sendall(json.dumps(first).encode() + b"\n")
        assert is_closed(sock)
    server.works().close()


def test_a_line_without_the_key_is_refused(server: Server) -> None:
    for wrong in (
        {"event": "hello"},
        {"sealed": "AAAA"},
        {"sealed": None},
        {"sealed": "\u00e9"},
        {},
    ):
        with server.welcomed() as sock:
            sock.sendall(json.dumps(wrong).encode() + b"\n")
            assert is_closed(sock)
    server.works().close()


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"trouble": "", "slots": 7},
        {"trouble": "", "slots": [{"node": "n1"}], "allocation": 1, "launches": []},
        {"trouble": "", "slots": [], "allocation": "7", "ending": False, "launches": [{"id": 1}]},
        {"trouble": "", "slots": [], "allocation": "7", "ending": False,
         "launches": [{"id": "1-a", "exit": {"code": {}}, "pid": None}]},
    ],
)  # fmt: skip
def test_an_agent_with_the_key_that_says_nonsense_loses_its_connection_only(
    said: dict[str, Any], server: Server
) -> None:
    good = server.works()
    connection = server.authenticated()
    connection.send(said)
    assert is_refused(connection)
    nonsenses: list[dict[str, Any]] = [
        {"event": "exited"}, {"event": "started", "id": []}, {"event": "forgotten", "job": {}},
    ]  # fmt: skip
    for number, nonsense in enumerate(nonsenses):
        connection = server.works(f"n{number}")
        connection.send(nonsense)
        assert is_refused(connection)
    assert server.launcher._thread.is_alive()
    good.close()
