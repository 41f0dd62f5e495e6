"""Parts of the Ray launcher that need no Ray: the manager of a node, the mirror of its output."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from ones.config import ServiceSettings
from ones.control.launching import launcher_of
from ones.control.statedir import StateDir
from ones.errors import WorldError
from ones.exec import Exit
from ones.launchers import Exited, Launch, LauncherEvent, SlotLost
from ones.launchers.devices import cpu_slots
from ones.launchers.ray.following import Following
from ones.launchers.ray.launcher import RayLauncher
from ones.launchers.ray.manager import NodeManager, slots_of
from ones.launchers.ray.mirror import SEGMENT_BYTES, SEGMENTS, Mirror
from ones.launchers.ray.options import RayOptions
from ones.launchers.ray.setup import stop_workers
from tests.processes import wait_for

ENV = {"PATH": os.environ["PATH"]}


class Node:
    def __init__(self, root: Path, lease: float) -> None:
        self.root, self.lease = root, lease
        self.licensed = True
        self.manager = self.make()

    def make(self, devices: tuple[str, ...] = ("", "")) -> NodeManager:
        slots = cpu_slots("n0", len(devices))
        return NodeManager(self.root, slots, self.lease, lambda timeout: self.licensed)

    def run(self, command: str, id: str = "1-a") -> None:
        argv = ["sh", "-c", command]
        given: dict[str, Any] = {"id": id, "job": "j", "slots": ["n0/0"], "argv": argv}
        self.manager.launch({**given, "cwd": str(self.root), "env": ENV})

    def news(self, id: str = "1-a") -> tuple[str, int | None, dict[str, Any] | None]:
        found = self.manager.poll(0, {}, 0.0)["launches"].get(id, ("", None, None))
        return tuple(found)

    def wait_exit(self, id: str = "1-a") -> dict[str, Any]:
        return wait_for(lambda: self.news(id)[2], f"{id} does not end") or {}


#: seconds; in these tests the lease runs out, or is looked after often
short_lease = pytest.mark.parametrize("node", [4.0], indirect=True, ids=[""])


@pytest.fixture
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path / "node", getattr(request, "param", 600.0))
    yield node
    node.manager.close()
    assert not keepers(), "a thread is left behind"


def keepers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "ones-lease"]


def test_it_tells_what_happened_since_it_was_asked_last(node: Node) -> None:
    node.run("echo hello; exit 3")
    assert node.wait_exit()["code"] == 3
    answer = node.manager.poll(0, {"1-a": 2}, 0.0)
    assert answer["output"] == {"1-a": (2, b"llo\n")}
    assert answer["alive"] == 0
    later = node.manager.poll(answer["version"], {"1-a": 6}, 0.0)
    assert (later["launches"], later["output"]) == ({}, {})


def test_reports_that_a_worker_left_are_in_the_mirror_before_its_exit_is_told(
    node: Node, tmp_path: Path
) -> None:
    node.run("printf '{}' > $ONES_RUN_DIR/reports.jsonl; exit 3")
    node.wait_exit()
    answer = node.manager.poll(0, {}, 0.0)
    assert answer["reports"] == {"1-a": b"{}"}
    mirror = Mirror(tmp_path / "mirror")
    mirror.make()
    mirror.add(Launch(id="1-a", job="j", slots=("n0/0",), argv=("sh",), cwd="/", env={}), "n0")
    told: list[tuple[str, bytes]] = []
    following = Following(
        "n0", mirror, lambda said: told.append((said["event"], mirror.reports("j", "1-a")))
    )
    following.hear(answer, {})
    following.hear({**answer, "launches": {}}, {"1-a": 0})
    assert ("exited", b"{}") in told


def test_a_waiting_poll_ends_with_the_news(node: Node) -> None:
    version = node.manager.poll(0, {}, 0.0)["version"]
    node.run("exit 0")
    while True:
        answer = node.manager.poll(version, {}, 30.0)
        version = answer["version"]
        if answer["launches"]["1-a"][2] is not None:
            break
    assert answer["launches"]["1-a"][2]["code"] == 0


def test_a_launch_is_prepared_on_its_node(node: Node) -> None:
    like: dict[str, Any] = {"id": "1-x", "job": "j", "slots": ["n0/0"], "argv": ["sh"]}
    node.manager.prepare({**like, "cwd": "/", "env": ENV})
    wait_for(lambda: list(node.root.glob("live/j/n0/lock")), "no ones-exec")
    assert node.manager.poll(0, {}, 0.0)["launches"] == {}


def test_without_its_licence_nothing_runs_and_the_lease_is_not_renewed(node: Node) -> None:
    node.run("trap '' TERM; sleep 1000")
    wait_for(lambda: node.news()[1])
    node.licensed = False
    before = (node.root / "lease").read_text()
    node.manager.renew()
    assert node.wait_exit()["cause"] in ("stopped", "fenced")
    answer = node.manager.poll(0, {}, 0.0)
    assert (answer["licensed"], answer["alive"]) == (False, 0)
    assert (node.root / "lease").read_text() == before


@short_lease
def test_a_head_that_does_not_answer_lets_the_lease_run_out(node: Node) -> None:
    node.run("sleep 1000")
    wait_for(lambda: node.news()[1])

    def silent(timeout: float) -> bool:
        raise TimeoutError

    node.manager._licensed = silent
    assert node.wait_exit()["cause"] == "fenced"


def test_a_full_disk_lets_the_lease_run_on_and_the_next_renewal_counts(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, until: float) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("ones.exec.lease.renew", full)
        node.manager.renew()
        before = float((node.root / "lease").read_text())
    node.manager.renew()
    assert float((node.root / "lease").read_text()) > before


@short_lease
def test_when_its_directory_is_gone_there_is_no_lease_to_keep(node: Node) -> None:
    assert keepers()
    node.root.rename(gone := node.root.with_name("gone"))
    wait_for(lambda: not keepers(), "it goes on without its directory")
    gone.rename(node.root)


def test_a_new_manager_finds_the_workers_unless_it_has_other_devices(node: Node) -> None:
    node.run("sleep 1000")
    pid = wait_for(lambda: node.news()[1])
    node.manager.close(kill=False)
    node.manager = node.make()
    assert wait_for(lambda: node.news()[1]) == pid
    assert node.news()[2] is None
    node.manager.close(kill=False)
    node.manager = node.make(("",))
    assert node.wait_exit()["cause"] == "stopped", "its GPUs may be somebody else's now"


def test_pretended_gpus_are_named_as_ray_numbers_them() -> None:
    found = slots_of("n0", "10.0.0.7", 0, ["2", "3"])
    assert [(s.id, s.kind, s.device, s.host) for s in found] == [
        ("n0/0", "gpu", "2", "10.0.0.7"),
        ("n0/1", "gpu", "3", "10.0.0.7"),
    ]


def test_security_is_said_in_full_whatever_ray_has_as_default() -> None:
    open_one = RayOptions(address="a:1", instance="i").environment()
    assert open_one == {"RAY_AUTH_MODE": "disabled", "RAY_USE_TLS": "0"}
    closed = RayOptions(
        address="a:1",
        instance="i",
        token_file="/t",
        tls_certificate="/c",
        tls_key="/k",
        tls_ca="/a",
    ).environment()
    assert (closed["RAY_AUTH_MODE"], closed["RAY_AUTH_TOKEN_PATH"]) == ("token", "/t")
    assert (closed["RAY_USE_TLS"], closed["RAY_TLS_CA_CERT"]) == ("1", "/a")


def test_nodes_must_see_where_jobs_save_their_work(tmp_path: Path) -> None:
    directory = StateDir(tmp_path)
    directory.make()
    for checkpoints, expected in (("", str(directory.checkpoints)), ("s3://b/ones", "s3://b/ones")):
        settings = ServiceSettings(launcher="ray", ray_address="h:1", checkpoints=checkpoints)
        launcher_of(settings, directory, str).close(kill=False)
        assert json.loads((directory.runs / "ray.json").read_text())["shared"] == expected


class Gone:
    """A service whose Ray cluster is no more: a node that it knew, a worker that ran there."""

    def __init__(self, root: Path, address: str) -> None:
        self.root = root
        self.options = RayOptions(address=address, instance="i", lease_seconds=4.0)
        (slot,) = cpu_slots("n0", 1)
        mirror = Mirror(root)
        mirror.make()
        mirror.add(
            Launch(id="1-a", job="j", slots=(slot.id,), argv=("true",), cwd="/", env={}), "n0"
        )
        (root / "nodes.json").write_text(json.dumps({"n0": ("RAY", [asdict(slot)])}))


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address that is taken, and at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def test_a_cluster_that_is_not_there_is_said_at_once(tmp_path: Path, nobody: str) -> None:
    launcher = RayLauncher(tmp_path, RayOptions(address=nobody, instance="i"))
    with pytest.raises(WorldError, match=f"Ray at {nobody}: connection refused; see .*bridge.log"):
        launcher.open(lambda event: None)


def test_a_lease_after_the_end_of_the_head_all_nodes_are_lost(tmp_path: Path, nobody: str) -> None:
    gone = Gone(tmp_path, nobody)
    events: list[LauncherEvent] = []
    launcher = RayLauncher(gone.root, gone.options)
    launcher.open(events.append)
    assert launcher.running()["1-a"].alive, "its lease may last"
    wait_for(lambda: any(isinstance(e, Exited) for e in events), str(events))
    (exit,) = [e.exit for e in events if isinstance(e, Exited)]
    assert exit.cause == "fenced"
    assert exit.describe() == "node n0: the head of the Ray cluster is gone"
    assert SlotLost("n0/0", "the head of the Ray cluster is gone") in events
    assert launcher.slots() == []
    launcher.close(kill=True)
    assert json.loads((gone.root / "nodes.json").read_text()) == {}


def test_workers_of_a_cluster_that_is_gone_are_not_waited_for(
    tmp_path: Path, nobody: str, caplog: pytest.LogCaptureFixture
) -> None:
    gone = Gone(tmp_path, nobody)
    stop_workers(gone.root, gone.options)
    said = f"Ray at {nobody}: connection refused; workers end by themselves within 4 s"
    assert caplog.messages == [said]


def test_nobody_is_asked_to_end_what_is_not_there(tmp_path: Path, nobody: str) -> None:
    stop_workers(tmp_path, RayOptions(address=nobody, instance="i"))
    assert not (tmp_path / "bridge.log").exists()


@pytest.fixture
def mirror(tmp_path: Path) -> Mirror:
    mirror = Mirror(tmp_path)
    mirror.make()
    launch = Launch(
        id="1-a", job="j", slots=("n0/0",), argv=("true",), cwd="/", env={"SECRET": "hidden"}
    )
    mirror.add(launch, "n0")
    return mirror


def test_the_mirror_keeps_no_environment(mirror: Mirror, tmp_path: Path) -> None:
    assert "hidden" not in (tmp_path / "live/j/n0/1-a/spec.json").read_text()


def test_output_with_a_gap_keeps_its_offsets(mirror: Mirror) -> None:
    mirror.take("j", "n0", "1-a", 0, b"0123")
    mirror.take("j", "n0", "1-a", 4, b"45")
    mirror.take("j", "n0", "1-a", 100, b"later")
    assert mirror.end("j", "n0", "1-a") == 105
    assert mirror.output("j", "1-a", 0, 6).data == b"012345"
    assert mirror.output("j", "1-a", -5, 10).data == b"later"


def test_the_newest_output_is_kept(mirror: Mirror, tmp_path: Path) -> None:
    piece, offset = b"x" * (SEGMENT_BYTES // 2), 0
    for _ in range(2 * SEGMENTS + 6):
        mirror.take("j", "n0", "1-a", offset, piece)
        offset += len(piece)
    kept = sum(p.stat().st_size for p in tmp_path.glob("live/*/*/1-a/out.*"))
    assert kept <= SEGMENTS * SEGMENT_BYTES
    assert mirror.end("j", "n0", "1-a") == offset


def test_an_ended_job_moves_and_stays_readable(mirror: Mirror) -> None:
    mirror.take("j", "n0", "1-a", 0, b"kept")
    mirror.exited("j", "n0", "1-a", Exit(code=0, at=1.0, cause="exited"))
    mirror.end_job("j")
    assert list(mirror.all()) == []
    assert mirror.output("j", "1-a", 0, 10).data == b"kept"
    (process,) = mirror.history("j")
    assert process.exit is not None
