"""A line may hold anything: what is no message ends the connection, and nothing is raised."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from ones.exec.line_protocol import MAX_UNAUTHENTICATED_LINE, Connection

BAD = {
    "deep": b"[" * 100_000 + b"\n",
    "deep object": b'{"a":' * 100_000 + b"\n",
    "not JSON": b"{half\n",
    "no object": b"[1]\n",
    "a word": b'"x"\n',
    "not UTF-8": b'{"a": "\xff\xfe"}\n',
    "half a character": b'{"a": "\\ud800"}\n',
    "400 digits": b'{"a": ' + b"9" * 400 + b"}\n",
    "5000 digits": b'{"a": ' + b"9" * 5000 + b"}\n",
    "too large a number": b'{"a": 1e999}\n',
    "NaN": b'{"a": NaN}\n',
    "infinite": b'{"a": -Infinity}\n',
    "empty": b"\n",
}


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    yield ours, theirs
    ours.close()
    theirs.close()


def received(pair: tuple[socket.socket, socket.socket], sent: bytes, line: Connection) -> list[str]:
    """All that is understood of what is sent, read as it comes."""
    found = []
    pair[0].setblocking(False)
    while sent and not line.closed:
        with suppress(BlockingIOError):
            sent = sent[pair[0].send(sent) :]
        found += [str(message["n"]) for message in line.receive()]
    return found


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_message_closes_the_connection_and_is_logged(
    name: str, pair: tuple[socket.socket, socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    line = Connection(pair[1])
    with caplog.at_level(logging.WARNING):
        found = received(pair, b'{"n": 1}\n' + BAD[name] + b'{"n": 2}\n', line)
    assert found == ["1"], "what came before is heard, what came after is not"
    assert line.closed
    assert "invalid line, connection closed" in caplog.text


def test_an_environment_that_is_no_unicode_passes_where_it_is_expected(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    line = Connection(pair[1], raw=True)
    odd = b"\xff".decode(errors="surrogateescape")
    pair[0].sendall(json.dumps({"env": odd}).encode() + b"\n")
    assert [message["env"] for message in line.receive()] == [odd]
    assert not line.closed


def test_a_line_is_as_long_as_its_limit_which_may_be_raised(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    line = Connection(pair[1], max_line=MAX_UNAUTHENTICATED_LINE)
    long = json.dumps({"n": "x" * 100_000}).encode() + b"\n"
    found = []
    pair[0].sendall(b'{"n": "proof"}\n' + long)
    for message in line.receive():
        found.append(len(message["n"]))
        line.max_line = 1 << 20
    found += [len(message["n"]) for message in line.receive()]
    assert found == [5, 100_000]
    line.max_line = MAX_UNAUTHENTICATED_LINE
    pair[0].sendall(b"x" * (MAX_UNAUTHENTICATED_LINE + 1))  # without an end
    assert list(line.receive()) == []
    assert line.closed


def test_a_sender_that_never_stops_is_not_read_without_end(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    line = Connection(pair[1], max_line=MAX_UNAUTHENTICATED_LINE)
    pair[0].setblocking(False)
    sent = 0
    while not line.closed:
        with suppress(BlockingIOError):
            sent += pair[0].send(b"[" * 65536)
        assert list(line.receive()) == []
        assert sent <= 8 << 20
