"""Hosts on one machine: a network namespace each, and a switch between them.

Each host has one interface with an address, and a cable to the switch. When a cable is pulled,
addresses and connections stay, and no process gets an error, as when a switch fails. Processes of
a host that is `apart` also have their own pids, as on another machine; they end with the test.
Needs the right to create namespaces (root), and `ip`.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from tests.processes import children_of

CLONE_NEWNET = 0x40000000
#: reserved for documentation (RFC 5737), so not used on any network
NETWORK = "198.51.100"


def trouble() -> str:
    """Why there can be no hosts here; empty: there can."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    for program in ("ip", "unshare", "nsenter"):
        if shutil.which(program, path=path) is None:
            return f"{program} is not installed: tools/system-packages"
    words = ["unshare", "--net", "--pid", "--fork", "--mount-proc", "ip", "link", "add", "v0"]
    words += ["type", "veth", "peer", "name", "v1"]
    tried = subprocess.run(words, capture_output=True, text=True, check=False)
    said = tried.stderr.strip().splitlines()
    return f"no network namespaces here: {said[-1:]}" if tried.returncode else ""


class Host:
    """The namespaces of a process that waits for us to end."""

    def __init__(self, address: str = "", *, apart: bool = False) -> None:
        self.address = address
        more = ["--pid", "--fork", "--mount-proc", "--kill-child"] if apart else []
        self._waits = subprocess.Popen(
            ["unshare", "--net", *more, "sh", "-c", "echo here; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._waits.stdout is not None
        assert self._waits.stdout.readline() == b"here\n"
        self.pid = children_of(self._waits.pid)[0] if apart else self._waits.pid
        self._kinds = ("--net", "--pid", "--mount") if apart else ("--net",)
        self.run("ip", "link", "set", "lo", "up")

    def command(self, *words: str) -> list[str]:
        """As it is typed elsewhere to run there."""
        return ["nsenter", f"--target={self.pid}", *self._kinds, "--", *words]

    def run(self, *words: str) -> None:
        done = subprocess.run(self.command(*words), capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}: {done.stderr}"

    @contextmanager
    def inside(self) -> Iterator[None]:
        """This thread, and what it starts, is on that host."""
        with open("/proc/thread-self/ns/net") as ours, open(f"/proc/{self.pid}/ns/net") as its:
            _enter(its.fileno())
            try:
                yield
            finally:
                _enter(ours.fileno())

    def end(self) -> None:
        """With everything that runs there, if it is apart."""
        for pipe in (self._waits.stdin, self._waits.stdout):
            assert pipe is not None
            pipe.close()
        self._waits.wait(120)


class Network:
    def __init__(self, hosts: Sequence[Host], switch: Host) -> None:
        self.hosts, self._switch = hosts, switch
        switch.run("ip", "link", "add", "switch", "type", "bridge")
        switch.run("ip", "link", "set", "switch", "up")
        for number, host in enumerate(hosts):
            cable = f"cable{number}"
            peer = ["peer", "name", "eth0", "netns", str(host.pid)]
            switch.run("ip", "link", "add", cable, "type", "veth", *peer)
            switch.run("ip", "link", "set", cable, "master", "switch", "up")
            host.run("ip", "address", "add", f"{host.address}/24", "dev", "eth0")
            host.run("ip", "link", "set", "eth0", "up")

    def pull(self, host: Host) -> None:
        self._cable(host, "down")

    def plug_in(self, host: Host) -> None:
        self._cable(host, "up")

    def _cable(self, host: Host, state: str) -> None:
        self._switch.run("ip", "link", "set", f"cable{self.hosts.index(host)}", state)


@contextmanager
def network() -> Iterator[Network]:
    """Two hosts: the first is ours in all but its network, the second one is apart."""
    with ExitStack() as stack:
        made = []
        for address, apart in ((f"{NETWORK}.1", False), (f"{NETWORK}.2", True), ("", False)):
            host = Host(address, apart=apart)
            stack.callback(host.end)
            made.append(host)
        yield Network(made[:2], made[2])


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
