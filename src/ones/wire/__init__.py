"""Messages between controller and training processes, versioned, and how values travel."""

from __future__ import annotations

import msgspec

from ones.errors import short
from ones.wire.decoding import CodecError, Decoder, parse
from ones.wire.messages import PROTOCOL, Orders, Reports

__all__ = ["PROTOCOL", "CodecError", "Orders", "Reports", "pack", "unpack"]

_ENCODER = msgspec.json.Encoder()
_DECODER: Decoder[Reports | Orders] = Decoder(Reports | Orders)


def pack(message: Reports | Orders) -> bytes:
    if not isinstance(message, Reports | Orders):
        raise TypeError(f"{type(message).__name__} does not travel here")
    return _ENCODER.encode(message)


def unpack(body: bytes) -> Reports | Orders:
    """The message, or a CodecError that names the field and the value."""
    try:
        message = _DECODER.decode(body)
        spoken: object = message.protocol
    except CodecError:
        spoken = _protocol(body)
        if spoken == PROTOCOL:
            raise
    if spoken != PROTOCOL:
        raise CodecError("protocol", f"{short(spoken)} is spoken there, {PROTOCOL} here")
    return message


def _protocol(body: bytes) -> object:
    """That of a message which cannot be read; ours, if it says nothing of it."""
    plain = parse(body)
    return plain.get("protocol", PROTOCOL) if isinstance(plain, dict) else PROTOCOL
