"""Messages between controller and training processes, versioned, and how values travel."""

from __future__ import annotations

import json

from ones.wire.codec import Codec, CodecError, parse, short
from ones.wire.messages import PROTOCOL, Orders, Reports

__all__ = ["PROTOCOL", "Codec", "CodecError", "Orders", "Reports", "pack", "unpack"]

_CODEC = Codec(Reports, Orders)


def pack(message: Reports | Orders) -> bytes:
    return json.dumps(_CODEC.encode(message), separators=(",", ":")).encode()


def unpack(body: bytes) -> Reports | Orders:
    """The message, or a CodecError that names the field and the value."""
    plain = parse(body)
    spoken = plain.get("protocol", PROTOCOL) if isinstance(plain, dict) else PROTOCOL
    if spoken != PROTOCOL:
        raise CodecError("protocol", f"{short(spoken)} is spoken there, {PROTOCOL} here")
    message: Reports | Orders = _CODEC.decode(plain)
    return message
