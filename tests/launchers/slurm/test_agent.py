"""Controller and agents of the Slurm launcher, with real processes and without Slurm: an agent
needs nothing of it but its arguments."""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from ones.exec import Exit
from ones.launchers import (
    Exited,
    Launch,
    LauncherEvent,
    Sampled,
    SlotEnding,
    SlotLost,
    SlotSuspect,
    SlotUp,
    Started,
)
from ones.launchers.devices import cpu_slots
from ones.launchers.slurm.launcher import SlurmLauncher
from ones.launchers.slurm.node_cleanup import clear_node, leftovers
from ones.launchers.slurm.secure_connection import AGENT, SecureConnection
from ones.launchers.slurm.settings import SlurmOptions, Timing
from ones.launchers.slurm.shared_directory import AllocationFile, SharedDirectory
from ones.wire.samples import SlotSample
from tests.processes import PATIENCE, is_alive, wait_for
from tests.slurm import PATIENT, QUICK

ENV = {"PATH": os.environ["PATH"]}


class Site:
    def __init__(self, root: Path, timing: Timing = PATIENT) -> None:
        self.root, self.timing = root, timing
        self.shared = SharedDirectory(root)
        self.events: list[LauncherEvent] = []
        self.agents: list[subprocess.Popen[bytes]] = []
        self.launcher = self.new_launcher()

    def new_launcher(self) -> SlurmLauncher:
        launcher = SlurmLauncher(self.root, SlurmOptions(timing=self.timing))
        launcher.open(self.events.append)
        return launcher

    def agent(self, node: str, allocation: str = "7") -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "ones.launchers.slurm.agent"]
        given = [str(self.root), allocation, node, "0,1", "0", self.timing.to_text()]
        process = subprocess.Popen([*command, *given])
        self.agents.append(process)
        return process

    def sampling_agent(self, node: str) -> None:
        """An agent with CPU slots that samples often."""
        script = (
            "import sys; from ones.launchers.slurm import agent; agent.SAMPLE_SECONDS = 0.1;"
            " sys.exit(agent.main(sys.argv[1:]))"
        )
        given = [str(self.root), "7", node, "", "2", self.timing.to_text()]
        self.agents.append(subprocess.Popen([sys.executable, "-c", script, *given]))

    def run(self, id: str, slot: str, command: str = "sleep 1000") -> None:
        self.launcher.launch(
            Launch(
                id=id, job="job", slots=(slot,), argv=("sh", "-c", command), cwd="/", env=ENV,
                grace_seconds=2.0,
            )
        )  # fmt: skip

    def saw(self, kind: type[LauncherEvent], what: str) -> bool:
        return any(
            isinstance(e, kind) and what == (e.slot.id if isinstance(e, SlotUp) else _of(e))
            for e in self.events
        )

    def wait(self, kind: type[LauncherEvent], what: str) -> None:
        wait_for(lambda: self.saw(kind, what), f"no {kind.__name__} {what}: {self.events}")

    def exit(self, id: str) -> Exit:
        self.wait(Exited, id)
        return next(e.exit for e in self.events if isinstance(e, Exited) and e.id == id)


def _of(event: LauncherEvent) -> object:
    return getattr(event, "id", None) or getattr(event, "slot", None)


#: in these tests nodes are lost
quick = pytest.mark.parametrize("site", [QUICK], indirect=True, ids=[""])


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path / "runs", getattr(request, "param", PATIENT))
    yield site
    site.launcher.close(kill=False)
    for agent in site.agents:
        agent.send_signal(signal.SIGCONT)
        agent.kill()
        agent.wait()
    for node in ("n1", "n2"):
        clear_node(site.root, node)


def test_what_workers_use_is_reported_and_nonsense_is_dropped(site: Site) -> None:
    site.sampling_agent("n1")
    site.wait(SlotUp, "n1/1")
    site.run("1-a", "n1/1")

    def samples() -> list[SlotSample]:
        found = [s for e in list(site.events) if isinstance(e, Sampled) for s in e.samples]
        return [sample for sample in found if sample.cpus is not None]

    first = wait_for(samples, "no samples")[0]
    assert (first.launch, first.slot) == ("1-a", "n1/1")
    assert first.memory_mb
    site.launcher.close(kill=False)  # from here on this thread is the only one
    site.events.clear()
    node = site.launcher._nodes.get("n1")
    assert node is not None
    alien = {"launch": "1-a", "slot": "n2/1"}, {"launch": "2-b", "slot": "n1/1"}
    for nonsense in (None, 7, [{"launch": 1}], [{**alien[0], "cpus": -1.0}], list(alien)):
        site.launcher._handle(node, {"event": "sampled", "samples": nonsense})
    assert not samples()
    site.launcher = site.new_launcher()


def test_gpus_are_offered_and_each_worker_sees_its_own(site: Site) -> None:
    site.agent("n1")
    site.wait(SlotUp, "n1/1")
    site.run("1-a", "n1/1", "echo gpu=$CUDA_VISIBLE_DEVICES host=$ONES_HOST")
    assert site.exit("1-a").code == 0
    assert site.launcher.logs("job", "1-a", 0, 99).data == b"gpu=1 host=127.0.0.1\n"


def test_a_caller_without_the_key_gets_nothing_and_harms_no_agent(site: Site) -> None:
    address = site.shared.address()
    assert address is not None
    first = b'{"node": "n9", "nonce": "%s"}\n' % (b"0" * 32)
    for words in (b"nonsense\n", first + b'{"slots": []}\n', b'{"node": 3}\n[]\n7\n{}\n'):
        with socket.create_connection((address.hosts[0], address.port), timeout=PATIENCE) as line:
            line.sendall(words)
            said = line.makefile("rb").read()  # until it is closed
        for answer in said.splitlines():
            assert set(json.loads(answer)) in ({"nonce"}, {"sealed"})
    site.agent("n1")
    site.wait(SlotUp, "n1/0")
    assert [slot.id for slot in site.launcher.slots()] == ["n1/0", "n1/1"]


NONCE = {"nonce": "0" * 32}
ORDER = {
    "do": "launch",
    "launch": asdict(
        Launch(id="9-z", job="forged", slots=("n1/0",), argv=("true",), cwd="/", env=ENV)
    ),
}


def listen_as_controller(site: Site) -> socket.socket:
    """Agents find this port instead of the controller's."""
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(PATIENCE)
    path = site.root / "agents.json"
    path.write_text(json.dumps({"port": server.getsockname()[1], "hosts": ["127.0.0.1"]}))
    return server


def nothing_was_forged(site: Site) -> None:
    site.wait(SlotUp, "n1/0")
    site.run("1-a", "n1/0", "exit 0")
    assert site.exit("1-a").code == 0
    assert not (site.root / "live" / "forged").exists()


@pytest.mark.parametrize(
    "said", [[NONCE, ORDER], [ORDER], [NONCE, {"sealed": "AAAA"}, ORDER], [{"nonce": 7}, ORDER]]
)
def test_an_agent_obeys_no_controller_without_the_key(
    site: Site, said: list[dict[str, Any]]
) -> None:
    site.launcher.close(kill=False)
    with listen_as_controller(site) as server:
        site.agent("n1")
        line, _ = server.accept()
        with line:
            line.settimeout(PATIENCE)
            words = line.makefile("rb")
            assert json.loads(words.readline())["node"] == "n1"
            line.sendall("".join(json.dumps(word) + "\n" for word in said).encode())
            assert words.read() == b"", "it disconnects without a word"
    site.launcher = site.new_launcher()
    nothing_was_forged(site)


def test_a_relay_without_the_key_can_add_nothing_in_either_direction(site: Site) -> None:
    """It passes the handshake and the registration on, and then adds lines of its own."""
    address = site.shared.address()
    assert address is not None
    forged_end = {"event": "ending"}
    for order, victim in ((ORDER, "agent"), (forged_end, "controller")):
        with listen_as_controller(site) as server:
            agent = site.agent("n1")
            with (
                server.accept()[0] as to_agent,
                socket.create_connection(("127.0.0.1", address.port)) as to_controller,
            ):
                passed = {to_agent: b"", to_controller: b""}
                with selectors.DefaultSelector() as ready:
                    for sock in passed:
                        ready.register(sock, selectors.EVENT_READ)
                    while not site.saw(SlotUp, "n1/0"):
                        for key, _ in ready.select(PATIENCE):
                            source = key.fileobj
                            assert isinstance(source, socket.socket)
                            data = source.recv(1 << 16)
                            passed[source] += data
                            other = to_controller if source is to_agent else to_agent
                            other.sendall(data)
                assert b"slots" not in passed[to_agent], "nor can it read anything"
                target = to_agent if victim == "agent" else to_controller
                target.sendall(json.dumps(order).encode() + b"\n")
                target.settimeout(PATIENCE)
                with suppress(ConnectionError):
                    while target.recv(1 << 16):
                        pass  # until it is closed
            agent.kill()
            agent.wait()
        assert not site.saw(SlotEnding, "n1/0")
        site.events.clear()
    site.shared.write_address(address)
    site.agent("n1")
    nothing_was_forged(site)


def test_messages_that_arrive_together_with_the_registration_are_handled(site: Site) -> None:
    address = site.shared.address()
    assert address is not None
    sock = socket.create_connection((address.hosts[0], address.port), timeout=PATIENCE)
    connection = SecureConnection(sock)
    connection.send({"node": "n1", "nonce": connection.nonce})
    nonces = wait_for(lambda: [m["nonce"] for m in connection.receive() if "nonce" in m])
    connection.secure(site.shared.key(), AGENT, "n1", nonces[0])
    registration = {
        "allocation": "7",
        "ending": False,
        "slots": [asdict(slot) for slot in cpu_slots("n1", 1)],
        "launches": [],
        "trouble": "",
    }
    for message in (registration, {"event": "ending"}):
        connection.send(message)
    site.wait(SlotUp, "n1/0")
    site.wait(SlotEnding, "n1/0")
    connection.close()


@pytest.mark.soak
@quick
def test_a_frozen_node_is_given_up_and_clears_up_before_it_serves_again(site: Site) -> None:
    site.agent("n1")
    other = site.agent("n2")
    site.wait(SlotUp, "n1/0")
    site.wait(SlotUp, "n2/0")
    site.run("1-a", "n1/0", "setsid sleep 1000 & sleep 1001")
    site.run("1-b", "n2/0")
    site.wait(Started, "1-a")
    site.wait(Started, "1-b")
    wait_for(lambda: len(leftovers(site.root, "n1")) >= 3)
    frozen = [site.agents[0].pid, *(p.pid for p in leftovers(site.root, "n1"))]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    site.wait(SlotSuspect, "n1/0")
    assert not site.saw(SlotLost, "n1/0"), "in doubt is not lost"
    site.wait(SlotLost, "n1/0")
    assert site.exit("1-a").cause == "fenced"
    assert [slot.id for slot in site.launcher.slots()] == ["n2/0", "n2/1"]
    site.events.clear()
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)
    site.wait(SlotUp, "n1/0")
    assert not any(is_alive(pid) for pid in frozen[1:]), "gone before the node offers itself"
    assert site.launcher.running()["1-b"].alive
    assert is_alive(other.pid)
    site.run("2-a", "n1/0", "exit 0")
    assert site.exit("2-a").code == 0


def test_requests_made_while_no_agent_was_connected_are_done_later(site: Site) -> None:
    agent = site.agent("n1")
    site.wait(SlotUp, "n1/0")
    site.run("1-a", "n1/0")
    site.wait(Started, "1-a")
    agent.kill()
    agent.wait()
    site.launcher.stop("1-a", 2.0)
    site.run("1-b", "n1/1", "exit 5")
    site.agent("n1")
    assert site.exit("1-a").cause == "stopped"
    assert site.exit("1-b").code == 5
    site.launcher.forget("job")
    wait_for(lambda: not site.launcher.running())
    assert {p.id for p in site.launcher.history("job")} == {"1-a", "1-b"}


def test_an_allocation_that_ends_lets_workers_save_and_then_loses_its_slots(site: Site) -> None:
    agent = site.agent("n1")
    site.wait(SlotUp, "n1/0")
    site.run("1-a", "n1/0", "trap 'echo saved; exit 0' TERM; while :; do sleep 0.05; done")
    site.wait(Started, "1-a")
    site.shared.write_allocation(AllocationFile(id="7", nodes={"n1": [0, 1]}, ending=True))
    site.wait(SlotEnding, "n1/0")
    assert site.exit("1-a").cause == "stopped"
    site.wait(SlotLost, "n1/1")
    assert agent.wait(PATIENCE) == 0
    assert site.launcher.logs("job", "1-a", 0, 99).data == b"saved\n"
    assert not leftovers(site.root, "n1"), "and no ones-exec"
    site.run("2-a", "n1/0")
    assert site.exit("2-a").describe() == "slot n1/0 is not here"


@quick
def test_a_controller_that_comes_back_gives_up_nodes_that_do_not(site: Site) -> None:
    agent = site.agent("n1")
    site.wait(SlotUp, "n1/0")
    site.run("1-a", "n1/0")
    site.wait(Started, "1-a")
    site.launcher.close(kill=False)
    agent.kill()
    agent.wait()
    site.events.clear()
    site.launcher = site.new_launcher()
    assert [slot.id for slot in site.launcher.slots()] == ["n1/0", "n1/1"], "it may still be there"
    assert site.launcher.running()["1-a"].alive
    site.wait(SlotLost, "n1/0")
    assert site.exit("1-a").cause == "fenced"
    wait_for(lambda: not leftovers(site.root, "n1"), "the lease has run out")
