"""A node with an expired lease ends its workers by itself, and starts none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ones.exec import lease
from ones.launchers import Exited, Launch, LauncherEvent, Started
from ones.launchers.devices import cpu_slots
from ones.launchers.local import LocalLauncher
from tests.processes import alive_below, wait_for

ENV = {"PATH": os.environ["PATH"]}
LONG = 1000.0


class Node:
    def __init__(self, root: Path) -> None:
        self.root, self.lease = root, root / "lease"
        self.events: list[LauncherEvent] = []
        self.launcher = LocalLauncher(root, cpu_slots("n0", 1), lease=self.lease)
        self.launcher.open(self.events.append)

    def run(self, id: str, command: str) -> None:
        self.launcher.launch(
            Launch(
                id=id,
                job="j",
                slots=("n0/0",),
                argv=("sh", "-c", command),
                cwd=str(self.root),
                env=ENV,
            )
        )

    def wait(self, kind: type[Started] | type[Exited], id: str) -> LauncherEvent:
        found = lambda: [e for e in self.events if isinstance(e, kind) and e.id == id]  # noqa: E731
        return wait_for(found, f"{kind} {id}: {self.events}")[0]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.launcher.close(kill=True)


def test_it_runs_out_and_all_that_a_worker_started_is_gone(node: Node) -> None:
    lease.renew(node.lease, lease.now() + LONG)
    node.run("1-a", "trap '' TERM; setsid sleep 1000 & sleep 1001")
    node.wait(Started, "1-a")
    lease.renew(node.lease, lease.now() + 0.3)
    # a worker that is there only looks when the time it knew of is over: so another one asks
    node.run("1-b", "sleep 1002")
    for id in ("1-a", "1-b"):
        ended = node.wait(Exited, id)
        assert isinstance(ended, Exited)
        assert ended.exit.cause == "fenced"
    wait_for(lambda: alive_below(node.root) == [], "and ones-exec goes, too")


def test_a_renewed_one_lets_workers_run_on(node: Node) -> None:
    lease.renew(node.lease, lease.now() + LONG)
    node.run("1-a", "while [ ! -e go ]; do sleep 0.05; done; exit 3")
    node.wait(Started, "1-a")
    lease.renew(node.lease, first := lease.now() + 4.0)
    node.run("1-b", "sleep 1004")  # for its sake ones-exec looks, and knows of the short time
    node.wait(Started, "1-b")
    lease.renew(node.lease, first + LONG)
    wait_for(lambda: lease.now() > first + 0.5)
    (node.root / "go").touch()
    ended = node.wait(Exited, "1-a")
    assert isinstance(ended, Exited)
    assert ended.exit.code == 3


def test_without_a_lease_no_worker_is_started(node: Node) -> None:
    node.run("1-a", "exit 0")
    ended = node.wait(Exited, "1-a")
    assert isinstance(ended, Exited)
    assert ended.exit.cause == "fenced", "which is not the job's fault"
    wait_for(lambda: alive_below(node.root) == [], "a worker outlives the lease")


@pytest.mark.parametrize("cause", ["fenced", "stopped"])
def test_a_worker_that_waits_for_torch_when_the_lease_ends_has_not_failed(
    node: Node, cause: str
) -> None:
    never_ready = node.root / "python"
    never_ready.write_text("#!/bin/sh\nexec sleep 1003\n")
    never_ready.chmod(0o755)
    lease.renew(node.lease, lease.now() + LONG)
    node.launcher.launch(
        Launch(
            id="1-a",
            job="j",
            slots=("n0/0",),
            argv=(str(never_ready), "train.py"),
            cwd=str(node.root),
            env=ENV,
            zygote=True,
        )
    )
    wait_for(lambda: list(node.root.glob("live/*/*/1-a/spec.json")))
    if cause == "fenced":
        lease.renew(node.lease, lease.now() - 1.0)
    else:
        node.launcher.stop("1-a", 5.0)
    ended = node.wait(Exited, "1-a")
    assert isinstance(ended, Exited)
    assert (ended.exit.cause, ended.exit.describe()) == (cause, "stopped before it was started")
