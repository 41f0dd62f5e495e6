"""The agent of a Ray node, without Ray."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ones.launchers import Launch
from ones.launchers.devices import cpu_slots
from ones.launchers.ray.launch_tracker import LaunchTracker
from ones.launchers.ray.mirror import Mirror
from ones.launchers.ray.node_agent import RayNodeAgent, granted_slots, node_root
from tests.processes import wait_for

ENV = {"PATH": os.environ["PATH"]}


class Node:
    def __init__(self, root: Path, lease: float) -> None:
        self.root, self.lease = root, lease
        self.licensed = True
        self.agent = self.make()

    def make(self, devices: tuple[str, ...] = ("", "")) -> RayNodeAgent:
        slots = cpu_slots("n0", len(devices))
        return RayNodeAgent(self.root, slots, self.lease, lambda timeout: self.licensed)

    def run(self, command: str, id: str = "1-a") -> None:
        argv = ["sh", "-c", command]
        given: dict[str, Any] = {"id": id, "job": "j", "slots": ["n0/0"], "argv": argv}
        launch = {**given, "cwd": str(self.root), "env": ENV}
        self.agent.handle({"do": "launch", "launch": launch})

    def news(self, id: str = "1-a") -> tuple[str, int | None, dict[str, Any] | None]:
        found = self.agent.poll(0, {}, 0.0)["launches"].get(id, ("", None, None))
        return tuple(found)

    def wait_exit(self, id: str = "1-a") -> dict[str, Any]:
        return wait_for(lambda: self.news(id)[2], f"{id} does not end") or {}


#: seconds; in these tests the lease runs out, or is looked after often
short_lease = pytest.mark.parametrize("node", [4.0], indirect=True, ids=[""])


@pytest.fixture
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path / "node", getattr(request, "param", 600.0))
    yield node
    node.agent.close()
    assert not renewers(), "a thread is left behind"


def renewers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "ones-lease"]


def test_it_tells_what_happened_since_it_was_asked_last(node: Node) -> None:
    node.run("echo hello; exit 3")
    assert node.wait_exit()["code"] == 3
    answer = node.agent.poll(0, {"1-a": 2}, 0.0)
    assert answer["output"] == {"1-a": (2, b"llo\n")}
    assert answer["alive"] == 0
    later = node.agent.poll(answer["version"], {"1-a": 6}, 0.0)
    assert (later["launches"], later["output"]) == ({}, {})


def test_the_last_samples_come_with_a_poll(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ones.launchers.ray.node_agent.SAMPLE_SECONDS", 0.1)
    node = Node(tmp_path / "sampled", 600.0)
    try:
        node.run("sleep 1000")
        version = node.agent.poll(0, {}, 0.0)["version"]
        (sample,) = wait_for(lambda: node.agent.poll(version, {}, 0.0)["samples"])
        assert (sample["launch"], sample["slot"]) == ("1-a", "n0/0")
    finally:
        node.agent.close()


def test_a_waiting_poll_ends_with_the_news(node: Node) -> None:
    version = node.agent.poll(0, {}, 0.0)["version"]
    node.run("exit 0")
    while True:
        answer = node.agent.poll(version, {}, 30.0)
        version = answer["version"]
        if answer["launches"]["1-a"][2] is not None:
            break
    assert answer["launches"]["1-a"][2]["code"] == 0


def test_a_launch_is_prepared_on_its_node(node: Node) -> None:
    like: dict[str, Any] = {"id": "1-x", "job": "j", "slots": ["n0/0"], "argv": ["sh"]}
    node.agent.handle({"do": "prepare", "launch": {**like, "cwd": "/", "env": ENV}})
    wait_for(lambda: list(node.root.glob("live/j/n0/lock")), "no ones-exec")
    assert node.agent.poll(0, {}, 0.0)["launches"] == {}


def test_without_its_licence_nothing_runs_and_the_lease_is_not_renewed(node: Node) -> None:
    node.run("trap '' TERM; sleep 1000")
    wait_for(lambda: node.news()[1])
    node.licensed = False
    before = (node.root / "lease").read_text()
    node.agent.renew()
    assert node.wait_exit()["cause"] in ("stopped", "fenced")
    answer = node.agent.poll(0, {}, 0.0)
    assert (answer["licensed"], answer["alive"]) == (False, 0)
    assert (node.root / "lease").read_text() == before


@short_lease
def test_a_head_that_does_not_answer_lets_the_lease_run_out(node: Node) -> None:
    node.run("sleep 1000")
    wait_for(lambda: node.news()[1])

    def silent(timeout: float) -> bool:
        raise TimeoutError

    node.agent._licensed = silent
    assert node.wait_exit()["cause"] == "fenced"


def test_a_full_disk_lets_the_lease_run_on_and_the_next_renewal_counts(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, until: float) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("ones.exec.lease.renew", full)
        node.agent.renew()
        before = float((node.root / "lease").read_text())
    node.agent.renew()
    assert float((node.root / "lease").read_text()) > before


@short_lease
def test_when_its_directory_is_gone_there_is_no_lease_to_keep(node: Node) -> None:
    assert renewers()
    node.root.rename(gone := node.root.with_name("gone"))
    wait_for(lambda: not renewers(), "it goes on without its directory")
    gone.rename(node.root)


def test_a_new_agent_finds_the_workers_unless_it_has_other_devices(node: Node) -> None:
    node.run("sleep 1000")
    pid = wait_for(lambda: node.news()[1])
    node.agent.close(kill=False)
    node.agent = node.make()
    assert wait_for(lambda: node.news()[1]) == pid
    assert node.news()[2] is None
    node.agent.close(kill=False)
    node.agent = node.make(("",))
    assert node.wait_exit()["cause"] == "stopped", "its GPUs may belong to another job now"


def test_pretended_gpus_are_named_as_ray_numbers_them() -> None:
    found = granted_slots("n0", "10.0.0.7", 0, ["2", "3"])
    assert [(s.id, s.kind, s.device, s.host) for s in found] == [
        ("n0/0", "gpu", "2", "10.0.0.7"),
        ("n0/1", "gpu", "3", "10.0.0.7"),
    ]


def test_the_directory_of_a_ray_node_is_ours_alone(tmp_path: Path) -> None:
    root = node_root(str(tmp_path / "ones"), "abcd", "n1")
    assert root == tmp_path / "ones" / "abcd" / "n1"
    for directory in (tmp_path / "ones", tmp_path / "ones" / "abcd", root):
        assert directory.stat().st_mode & 0o777 == 0o700
    assert node_root(str(tmp_path / "ones"), "abcd", "n1") == root, "it is found again"


def test_a_directory_that_others_can_change_is_refused(tmp_path: Path) -> None:
    base = tmp_path / "ones"
    (tmp_path / "elsewhere").mkdir()
    base.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="or it is a link; remove it or choose another"):
        node_root(str(base), "abcd", "n1")
    base.unlink()
    base.mkdir()
    base.chmod(0o777)
    with pytest.raises(PermissionError, match="other users can change it"):
        node_root(str(base), "abcd", "n1")
    base.chmod(0o1777)  # as /tmp is: others may add to it, and not change what is ours
    node_root(str(base), "abcd", "n1")
    (base / "dcba").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="is a link or a file"):
        node_root(str(base), "dcba", "n1")
    if os.geteuid() == 0:
        os.chown(base, 4711, 4711)
        with pytest.raises(PermissionError, match="user 4711"):
            node_root(str(base), "abcd", "n1")


def test_an_agent_s_lease_is_kept_whatever_is_in_its_directory(tmp_path: Path) -> None:
    agent = RayNodeAgent(tmp_path / "n", cpu_slots("n0", 1), 0.5, lambda timeout: True)
    try:
        (tmp_path / "n" / "lease").unlink()
        (tmp_path / "n" / "lease").mkdir()
        agent.renew()
        (tmp_path / "n" / "lease").rmdir()
        wait_for((tmp_path / "n" / "lease").is_file, "the thread has ended")
    finally:
        agent.close()


def test_reports_that_a_worker_left_are_in_the_mirror_before_its_exit_is_told(
    node: Node, tmp_path: Path
) -> None:
    node.run("printf '{}' > $ONES_RUN_DIR/reports.jsonl; exit 3")
    node.wait_exit()
    mirror = Mirror(tmp_path / "mirror")
    mirror.make()
    mirror.add(Launch(id="1-a", job="j", slots=("n0/0",), argv=("sh",), cwd="/", env={}), "n0")
    told: list[tuple[str, bytes]] = []
    tracker = LaunchTracker(
        "n0", mirror, lambda said: told.append((said["event"], mirror.reports("j", "1-a")))
    )
    version = 0
    while tracker or not told:
        copied = tracker.copied
        answer = node.agent.poll(version, copied, 0.0)
        version = answer["version"]
        tracker.update(answer, copied)
    assert ("exited", b"{}") in told
