"""Ports and addresses for clusters that are pretended on this machine; of `ray-cluster` and co."""

from __future__ import annotations

import contextlib
import random
import socket

#: below those that Linux gives to whoever asks for any port (32768 and up): what is free here
#: still is so seconds later, when a server has started
PORTS = range(20_000, 32_000)


def free_ports(count: int) -> list[int]:
    found: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        with contextlib.suppress(OSError), socket.socket() as sock:
            sock.bind(("", port))  # on every interface
            found.append(port)
            if len(found) == count:
                return found
    raise OSError(f"{count} ports between {PORTS[0]} and {PORTS[-1]} are not free")


def own_address() -> str:
    """The one that Ray would choose: all nodes must have the same, to be known as one machine's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
