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
        (None, {}, "address: with --launcher ray it must be said, as host:port"),
        (4, {"address": "h:1"}, "slots: of Ray's nodes they are counted by a resource"),
        (None, {"address": "h:1", "tls_key": "k"}, "ray_tls: certificate, key and ca go together"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    tmp_path: Path, slots: int | None, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidSettingError, match=words):
        create("ray", LauncherContext(runs=tmp_path, slots=slots), **settings)


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
    with pytest.raises(
        WorldError, match=f"Ray at {nobody}: connection refused; see .*ray-driver.log"
    ):
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
    settings = {"address": gone.options.address, "lease_seconds": gone.options.lease_seconds}
    stop_workers("ray", LauncherContext(runs=gone.root), **settings)
    said = f"Ray at {nobody}: connection refused; workers end by themselves within 4 s"
    assert caplog.messages == [said]


def test_nobody_is_asked_to_end_what_is_not_there(tmp_path: Path, nobody: str) -> None:
    stop_workers("ray", LauncherContext(runs=tmp_path), address=nobody)
    assert not (tmp_path / "ray-driver.log").exists()
