"""Messages between controller and training processes, and their encoding."""

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
        raise TypeError(f"{type(message).__name__} is not a message of the worker protocol")
    return _ENCODER.encode(message)


def unpack(body: bytes) -> Reports | Orders:
    """The message, or a CodecError that names the field and the value."""
    try:
        message = _DECODER.decode(body)
        protocol: object = message.protocol
    except CodecError:
        protocol = _protocol(body)
        if protocol == PROTOCOL:
            raise
    if protocol != PROTOCOL:
        raise CodecError("protocol", f"the sender uses {short(protocol)}, this side {PROTOCOL}")
    return message


def _protocol(body: bytes) -> object:
    """The protocol version of an invalid message; ours if the message has none."""
    plain = parse(body)
    return plain.get("protocol", PROTOCOL) if isinstance(plain, dict) else PROTOCOL
