"""The controller's side of the Ray launcher, without a cluster."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from ones.config import ServiceSettings
from ones.control.launching import launcher_of
from ones.control.statedir import StateDir
from ones.errors import InvalidSettingError, WorldError
from ones.launchers import Exited, Launch, LauncherContext, LauncherEvent, SlotLost
from ones.launchers.devices import cpu_slots
from ones.launchers.ray.launcher import RayLauncher
from ones.launchers.ray.mirror import Mirror
from ones.launchers.ray.settings import RayOptions
from ones.launchers.registry import create, stop_workers
from tests.processes import wait_for


def test_security_is_said_in_full_whatever_ray_has_as_default() -> None:
    open_one = RayOptions(address="a:1", instance="i").environment()
    assert open_one == {"RAY_AUTH_MODE": "disabled", "RAY_USE_TLS": "0"}
    closed = RayOptions(
        address="a:1",
        instance="i",
        token="/t",
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
        settings = ServiceSettings(
            launcher="ray", launchers={"ray": {"address": "h:1"}}, checkpoints=checkpoints
        )
        launcher = launcher_of(settings, directory, str)
        assert isinstance(launcher, RayLauncher)
        launcher.close(kill=False)
        assert launcher._options.shared == expected


@pytest.mark.parametrize(
    ("slots", "settings", "words"),
    [
        (None, {}, "address is not set: give the head of the Ray cluster, as --address HOST:PORT"),
        (4, {"address": "h:1"}, "slots 4: Ray counts slots by a resource"),
        (
            None,
            {"address": "h:1", "tls_key": "k"},
            "TLS needs all of tls_certificate, tls_key and tls_ca",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(
    tmp_path: Path, slots: int | None, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidSettingError, match=words):
        create("ray", LauncherContext(runs=tmp_path, slots=slots), **settings)


class Gone:
    """A service after its Ray cluster is gone: with a known node, and a worker that ran there."""

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
def no_cluster() -> Iterator[str]:
    """An address in use, without a listener."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def test_a_cluster_that_is_not_there_is_said_at_once(tmp_path: Path, no_cluster: str) -> None:
    launcher = RayLauncher(tmp_path, RayOptions(address=no_cluster, instance="i"))
    with pytest.raises(
        WorldError, match=f"Ray at {no_cluster}: connection refused; see .*ray-driver.log"
    ):
        launcher.open(lambda event: None)


def test_a_lease_after_the_end_of_the_head_all_nodes_are_lost(
    tmp_path: Path, no_cluster: str
) -> None:
    gone = Gone(tmp_path, no_cluster)
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


def test_a_node_of_a_new_head_is_kept_when_the_leases_of_the_old_one_expire(
    tmp_path: Path, no_cluster: str
) -> None:
    """The driver reports the new head's nodes before it has settled the old ones."""
    launcher = RayLauncher(tmp_path, RayOptions(address=no_cluster, instance="i"))
    launcher._handle({"event": "failed", "cause": "connection refused", "gone": True})
    assert launcher._gone_since is not None
    launcher._gone_since -= 100.0
    slots = [asdict(slot) for slot in cpu_slots("n1", 1)]
    launcher._handle({"event": "node", "node": "n1", "ray": "R", "slots": slots, "launches": {}})
    launcher._check_head()
    assert [slot.id for slot in launcher.slots()] == ["n1/0"]
    launcher.close(kill=False)


def test_workers_of_a_cluster_that_is_gone_are_not_waited_for(
    tmp_path: Path, no_cluster: str, caplog: pytest.LogCaptureFixture
) -> None:
    gone = Gone(tmp_path, no_cluster)
    settings = {"address": gone.options.address, "lease_seconds": gone.options.lease_seconds}
    stop_workers("ray", LauncherContext(runs=gone.root), **settings)
    said = f"Ray at {no_cluster}: connection refused; workers end by themselves within 4 s"
    assert caplog.messages == [said]


def test_stop_workers_without_a_cluster_starts_no_driver(tmp_path: Path, no_cluster: str) -> None:
    stop_workers("ray", LauncherContext(runs=tmp_path), address=no_cluster)
    assert not (tmp_path / "ray-driver.log").exists()
