"""Lines of agents that were forged, changed, repeated, reordered or left out are refused."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ones.launchers.slurm.secure_connection import AGENT, CONTROLLER, SecureConnection

KEY, NODE = os.urandom(32), "n1"
ORDERS = [{"do": "launch", "n": n, "token": "secret"} for n in range(4)]


class Pair:
    """An agent and a controller; what the agent gets is what a test makes of the lines sent."""

    def __init__(self, agent_key: bytes = KEY, agent_node: str = NODE) -> None:
        sockets = [*socket.socketpair(), *socket.socketpair()]
        self.sockets = sockets
        self.controller = SecureConnection(sockets[0])
        self.controller_wire, self.agent_wire = sockets[1], sockets[2]
        self.agent = SecureConnection(sockets[3], raw=True)
        self.controller.secure(KEY, CONTROLLER, NODE, self.agent.nonce)
        self.agent.secure(agent_key, AGENT, agent_node, self.controller.nonce)

    def sent(self, *messages: dict[str, Any]) -> list[bytes]:
        """The lines on the wire, when the controller sends these."""
        for message in messages:
            self.controller.send(message)
        return self.controller_wire.recv(1 << 16).splitlines(keepends=True)

    def received(self, *lines: bytes) -> list[dict[str, Any]]:
        self.agent_wire.sendall(b"".join(lines))
        return list(self.agent.receive())

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


def test_lines_arrive_as_they_were_sent_and_are_not_readable_on_the_way(pair: Pair) -> None:
    lines = pair.sent(*ORDERS)
    assert not any(b"secret" in line or b"launch" in line for line in lines)
    assert not pair.agent.is_authenticated
    assert pair.received(*lines) == ORDERS
    assert pair.agent.is_authenticated
    pair.agent.send({"event": "started"})
    pair.controller_wire.sendall(pair.agent_wire.recv(1 << 16))
    assert list(pair.controller.receive()) == [{"event": "started"}]


def test_an_environment_that_is_not_unicode_arrives(pair: Pair) -> None:
    order = {"env": {"A": "\udcff"}}
    assert pair.received(*pair.sent(order)) == [order]


def _flip(line: bytes) -> bytes:
    """One bit of what is sealed."""
    sealed = json.loads(line)["sealed"]
    changed = ("B" if sealed[0] == "A" else "A") + sealed[1:]
    return json.dumps({"sealed": changed}).encode() + b"\n"


PLAIN = json.dumps({"do": "launch", "n": 9}).encode() + b"\n"
#: what is done to four lines -> how many of them the agent accepts before it disconnects
TAMPERED: dict[str, tuple[Callable[[list[bytes]], list[bytes]], int]] = {
    "replay": (lambda lines: [lines[0], lines[0], *lines[1:]], 1),
    "replay later": (lambda lines: [*lines[:3], lines[1], lines[3]], 3),
    "reordering": (lambda lines: [lines[0], lines[2], lines[1], lines[3]], 1),
    "a line left out": (lambda lines: [lines[0], *lines[2:]], 1),
    "the first line left out": (lambda lines: lines[1:], 0),
    "a line cut short": (lambda lines: [lines[0], lines[1][:40] + b'"}\n', *lines[2:]], 1),
    "a changed bit": (lambda lines: [lines[0], _flip(lines[1]), *lines[2:]], 1),
    "injection of a plain line": (lambda lines: [lines[0], PLAIN, *lines[1:]], 1),
    "injection before all others": (lambda lines: [PLAIN, *lines], 0),
    "injection of a sealed line": (lambda lines: [lines[0], b'{"sealed": "AAAA"}\n'], 1),
    "not base64": (lambda lines: [lines[0], b'{"sealed": "*"}\n'], 1),
    "not a text": (lambda lines: [lines[0], b'{"sealed": [1]}\n'], 1),
}


@pytest.mark.parametrize("how", TAMPERED)
def test_a_line_that_was_tampered_with_ends_the_connection(how: str, pair: Pair) -> None:
    tamper, accepted = TAMPERED[how]
    assert pair.received(*tamper(pair.sent(*ORDERS))) == ORDERS[:accepted]
    assert pair.agent.closed
    assert pair.received(*pair.sent({"do": "ping"})) == [], "nothing is accepted afterwards"


def test_a_stream_that_ends_within_a_line_gives_whole_lines_only(pair: Pair) -> None:
    lines = pair.sent(*ORDERS)
    assert pair.received(*lines[:2], lines[2][:-1]) == ORDERS[:2]
    pair.agent_wire.close()
    assert list(pair.agent.receive()) == []
    assert pair.agent.closed


def test_lines_of_another_connection_are_refused(pair: Pair) -> None:
    other = Pair()
    assert pair.received(*other.sent(*ORDERS)) == []
    assert pair.agent.closed
    other.close()


def test_a_side_cannot_be_given_its_own_lines(pair: Pair) -> None:
    pair.agent.send({"do": "launch"})
    assert pair.received(pair.agent_wire.recv(1 << 16)) == []
    assert pair.agent.closed


@pytest.mark.parametrize("other", [{"agent_key": os.urandom(32)}, {"agent_node": "n2"}])
def test_another_key_or_node_is_refused(other: dict[str, Any]) -> None:
    pair = Pair(**other)
    assert pair.received(*pair.sent(*ORDERS)) == []
    assert (pair.agent.closed, pair.agent.is_authenticated) == (True, False)
    pair.close()


@pytest.mark.parametrize("nonce", [None, "", "x", "00", "0" * 31, "0" * 34, 7, ["0" * 32]])
def test_a_nonce_that_is_none_is_refused(nonce: object, pair: Pair) -> None:
    with pytest.raises(ValueError, match=r"nonce|fromhex"):
        pair.agent.secure(KEY, AGENT, NODE, nonce)
