"""Encrypted and authenticated connections between agents and the controller.

Messages are JSON lines. Both sides read the key from the shared directory.

    agent:       {"node": "n1", "nonce": "..."}
    controller:  {"nonce": "..."}
    both:        {"sealed": "..."}      every further line

Each connection has two keys, one per direction, derived from the shared key, the node and both
nonces. Lines are sealed with AES-256-GCM; the nonce is the number of the line. A line that was
forged, changed, repeated, left out, moved or recorded on another connection does not decrypt and
ends the connection. There is no forward secrecy: with the shared key, recorded traffic is readable.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ones.exec.line_protocol import MAX_LINE, MAX_UNAUTHENTICATED_LINE, Connection

AGENT, CONTROLLER = "agent", "controller"
_PROTOCOL = "ones-agent-1"
_NONCE_BYTES = 16


class SecureConnection(Connection):
    """Lines are plain, and short, until `secure` is called. `raw` as for Connection."""

    def __init__(self, sock: socket.socket, *, raw: bool = False) -> None:
        super().__init__(sock, max_line=MAX_UNAUTHENTICATED_LINE, raw=raw)
        self._sender: _Cipher | None = None
        self._receiver: _Cipher | None = None
        self.nonce = secrets.token_hex(_NONCE_BYTES)
        self.is_authenticated = False  # the peer has sent a line that needs the key

    def secure(self, key: bytes, side: str, node: str, peer_nonce: object) -> None:
        """Seals all further lines, in both directions. Raises ValueError for an invalid nonce."""
        if not isinstance(peer_nonce, str) or len(bytes.fromhex(peer_nonce)) != _NONCE_BYTES:
            raise ValueError(f"a nonce must have {_NONCE_BYTES} bytes, as hexadecimal digits")
        other = CONTROLLER if side == AGENT else AGENT
        nonces = {side: self.nonce, other: peer_nonce}
        session = [_PROTOCOL, node, nonces[AGENT], nonces[CONTROLLER]]
        self._sender = _Cipher(key, [*session, side])
        self._receiver = _Cipher(key, [*session, other])

    def send(self, message: Mapping[str, Any]) -> None:
        if self._sender is not None:
            sealed = self._sender.seal(json.dumps(message).encode())
            message = {"sealed": b64encode(sealed).decode()}
        super().send(message)

    def receive(self) -> Iterator[dict[str, Any]]:
        for message in super().receive():
            if self._receiver is None:
                yield message
                continue
            try:
                line = self._receiver.open(b64decode(message["sealed"], validate=True))
                opened = self._parse(line)
            except (InvalidTag, KeyError, TypeError, ValueError, RecursionError):
                self._refuse("authentication failed: another key, or the line was tampered with")
                return
            self.is_authenticated = True
            self.max_line = MAX_LINE
            yield opened


class _Cipher:
    """One direction of one connection. Each line has the next number as its nonce."""

    def __init__(self, key: bytes, session: list[str]) -> None:
        self._cipher = AESGCM(hmac.digest(key, json.dumps(session).encode(), "sha256"))
        self._lines = 0

    def _next_nonce(self) -> bytes:
        self._lines += 1
        return self._lines.to_bytes(12, "big")

    def seal(self, line: bytes) -> bytes:
        return self._cipher.encrypt(self._next_nonce(), line, None)

    def open(self, sealed: bytes) -> bytes:
        """Decrypts the next line. Raises InvalidTag if it is not the one that the peer sent."""
        return self._cipher.decrypt(self._next_nonce(), sealed, None)
