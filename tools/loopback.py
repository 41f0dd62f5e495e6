"""Ports and addresses for the local clusters of `ray-cluster`, `slurm-cluster` and `postgres`."""

from __future__ import annotations

import contextlib
import random
import socket

#: below the ephemeral ports of Linux (32768 and up), so that a free port is still free when the
#: server starts seconds later
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
    """The address that Ray chooses. All nodes must use the same one to count as one machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
