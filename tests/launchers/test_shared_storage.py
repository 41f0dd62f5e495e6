"""Checkpoints and probes on an S3-compatible store, and nodes that cannot see what they must."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ones.launchers.probe import Probe, check_probe, write_probe
from ones.launchers.slurm.allocation import manage_in_background
from ones.launchers.slurm.launcher import SlurmLauncher
from ones.launchers.slurm.settings import SlurmOptions
from ones.train.checkpoints import Checkpoints
from tests.processes import wait_for
from tests.slurm import PATIENT, end_managers, slurm_allocation, slurm_cluster

__all__ = ["slurm_allocation", "slurm_cluster"]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server_module: Any = pytest.importorskip("moto.server", reason="moto is not installed")
    s3fs: Any = pytest.importorskip("s3fs", reason="s3fs is not installed")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3fs.S3FileSystem.clear_instance_cache()
    name = f"bucket-{uuid.uuid4().hex}"  # moto keeps them while the process lives
    s3fs.S3FileSystem().mkdir(name)
    yield f"s3://{name}/ones"
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


@pytest.mark.filterwarnings("ignore")  # of libraries that are not ours and not pinned
def test_checkpoints_on_s3_are_found_by_generation_and_pruned(bucket: str) -> None:
    path = f"{bucket}/job-1"
    writer, reader = Checkpoints(path), Checkpoints(path)
    assert reader.load() is None
    for step in (1, 2, 3):
        writer.save({"progress": {"step": step}, "w": torch.ones(3) * step}, (4, 0), step)
    stale = Checkpoints(path)
    stale.save({"progress": {"step": 99}, "w": torch.zeros(3)}, (3, 0), 99)
    state = reader.load()
    assert state is not None
    assert state["progress"]["step"] == 3, "of the newest generation, not of the last writer"
    assert torch.equal(state["w"], torch.ones(3) * 3)
    assert len(reader._all()) <= 3


@pytest.mark.filterwarnings("ignore")
def test_a_probe_on_s3_tells_a_missing_bucket(bucket: str) -> None:
    probe = write_probe(bucket)
    assert check_probe(probe) == ""
    assert check_probe(Probe("s3://nowhere/x", probe.content)).startswith("s3://nowhere/x: ")


@pytest.mark.slow
def test_a_node_that_cannot_see_the_path_is_refused_when_it_comes(
    slurm_allocation: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "runs"
    root.mkdir()
    seen = write_probe(str(tmp_path / "checkpoints"))
    missing = Probe("/no/such/place", "word")
    manage_in_background(root, cpus=1, lead=20.0, timing=PATIENT)
    launcher = SlurmLauncher(root, SlurmOptions(timing=PATIENT, probes=(seen, missing)))
    launcher.open(lambda event: None)
    try:
        wait_for(lambda: launcher.unfit)
        assert launcher.unfit == {"n1": "/no/such/place: no such file or directory"}
        assert launcher.slots() == []
        said = [(vars(record)["node"], vars(record)["reason"]) for record in caplog.records]
        assert ("n1", "/no/such/place: no such file or directory") in said
        line = 'node cannot be used node=n1 reason="/no/such/place: no such file or directory"'
        wait_for(lambda: line in (root / "allocation.log").read_text())
    finally:
        launcher.close(kill=True)
        end_managers(root)
