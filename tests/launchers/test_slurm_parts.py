"""The parts of the Slurm launcher that need no Slurm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ones.errors import InvalidSettingError, UserError, WorldError
from ones.launchers.probe import Probe, place, trouble
from ones.launchers.slurm.allocation import attend, step_environment
from ones.launchers.slurm.commands import agent_command, look, read
from ones.launchers.slurm.fence import clear_node, remains
from ones.launchers.slurm.granted import slots_of
from ones.launchers.slurm.script import Script
from ones.launchers.slurm.shared import HERE, LOST, AllocationFile, Shared, Timing
from tests.processes import PATIENCE, is_alive, wait_for

TOLD = """\
JobId=7 JobName=ones
   JobState=RUNNING Reason=None Dependency=(null)
   StartTime=2026-11-16T03:07:01 EndTime=2026-11-16T03:12:01 Deadline=N/A
   NodeList=n[1-3]
   JOB_GRES=gpu:10
     Nodes=n[1-2] CPU_IDs=0 Mem=0 GRES=gpu:4(IDX:0-3)
     Nodes=n3 CPU_IDs=0 Mem=0 GRES=gpu:a100:2(IDX:1,3)
   TresPerNode=gres:gpu:4
"""


def expand(short: str) -> list[str]:
    return {"n[1-2]": ["n1", "n2"], "n3": ["n3"]}[short]


def test_an_allocation_is_read_as_slurm_tells_it() -> None:
    found = read(TOLD, expand)
    assert found.state == "RUNNING"
    assert found.nodes == {"n1": [0, 1, 2, 3], "n2": [0, 1, 2, 3], "n3": [1, 3]}
    started = read(TOLD.replace("03:12:01", "03:07:01"), expand)
    assert found.ends_at - started.ends_at == 300


def test_gpus_that_slurm_counts_and_does_not_name_are_numbered() -> None:
    found = read(TOLD.replace("gpu:4(IDX:0-3)", "gpu:4").replace("(IDX:1,3)", ""), expand)
    assert found.nodes == {"n1": [0, 1, 2, 3], "n2": [0, 1, 2, 3], "n3": [0, 1]}
    none = read(TOLD.replace(" GRES=gpu:4(IDX:0-3)", " GRES="), expand)
    assert none.nodes["n1"] == []
    assert read("JobState=RUNNING EndTime=Unknown", expand).ends_at == 0.0


def test_a_step_inherits_no_options_of_the_batch() -> None:
    given = {"PATH": "/bin", "SLURM_CONF": "/c", "SLURM_GPUS_PER_NODE": "4", "SLURM_NTASKS": "9"}
    assert step_environment(given) == {"PATH": "/bin", "SLURM_CONF": "/c"}
    command = agent_command("7", "n2", 4, ["true"])
    assert {"--overlap", "--jobid=7", "--nodelist=n2", "--gpus-per-node=4"} <= set(command)
    assert not any("gpus" in word for word in agent_command("7", "n2", 0, ["true"]))


def test_slots_are_the_gpus_that_were_given_under_their_own_numbers() -> None:
    slots = slots_of("n3", [1, 3], 0)
    assert [(s.id, s.device, s.kind) for s in slots] == [("n3/0", "1", "gpu"), ("n3/1", "3", "gpu")]
    assert [s.kind for s in slots_of("n3", [], 2)] == ["cpu", "cpu"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"nodes": 0}, "nodes: 0 is not at least 1"),
        ({"lead": 1}, "lead: 1 is not at least 10"),
        ({"time": "soon"}, "time: 'soon' is not a time"),
    ],
)
def test_a_script_that_cannot_work_is_refused(wrong: dict[str, int], words: str) -> None:
    with pytest.raises(InvalidSettingError, match=words):
        replace(Script(), **wrong).text()  # type: ignore[arg-type]


def test_a_script_is_quoted_and_takes_further_options() -> None:
    text = Script(state="/a b", options=("--partition=gpu", "--account=x")).text()
    assert "#SBATCH --partition=gpu\n#SBATCH --account=x\n" in text
    assert "exec ones slurm serve --state '/a b' --slots 1" in text


def test_without_slurm_or_an_allocation_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="scontrol is not here"):
        look("1")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(UserError, match="not inside of an allocation"):
        attend(tmp_path, cpus=1, lead=10, timing=Timing())


def test_what_is_shared_is_read_as_it_was_written(tmp_path: Path) -> None:
    shared = Shared(tmp_path / "runs")
    shared.make()
    assert shared.key() == Shared(tmp_path / "runs").key()
    assert oct((tmp_path / "runs" / "agents.key").stat().st_mode & 0o777) == "0o600"
    assert shared.word("n1") == HERE
    shared.say("n1", LOST)
    assert shared.word("n1") == LOST
    allocation = AllocationFile(id="7", nodes={"n1": [0]}, ends_at=5.0)
    shared.write_allocation(allocation)
    (tmp_path / "runs" / "allocations" / "8.json").write_text("half a fil")
    assert shared.allocations() == [allocation]
    assert shared.others("9") == [], "nobody sees to it any more"
    assert shared.allocations() == []
    assert Timing.from_text(Timing(lease=9.0).to_text()) == Timing(lease=9.0)


def test_clearing_a_node_kills_its_processes_and_nobody_elses(tmp_path: Path) -> None:
    def start(node: str) -> subprocess.Popen[bytes]:
        env = {**os.environ, "ONES_JOB_DIR": f"{tmp_path}/live/job/{node}"}
        return subprocess.Popen(["sh", "-c", "env -i sleep 1000 & sleep 1001"], env=env)

    mine, other = start("n1"), start("n10")
    try:
        wait_for(lambda: len(remains(tmp_path, "n1")) == 3)
        clear_node(tmp_path, "n1")
        assert mine.wait(PATIENCE) == -9
        assert is_alive(other.pid)
        assert not remains(tmp_path, "n1")
    finally:
        clear_node(tmp_path, "n10")
        other.wait(PATIENCE)


# can a node see what the controller sees?


def test_a_probe_tells_what_a_node_cannot_see(tmp_path: Path) -> None:
    probe = place(str(tmp_path / "shared"))
    assert trouble(probe) == ""
    assert trouble(Probe(str(tmp_path / "elsewhere"), probe.word)) == (
        f"{tmp_path}/elsewhere: no such file or directory"
    )
    another = place(str(tmp_path / "other"))
    assert trouble(Probe(another.directory, probe.word)).endswith(
        "/other: is another directory than the controller's"
    )
    (tmp_path / "file").touch()
    with pytest.raises(WorldError, match="file/x: cannot be written to: not a directory"):
        place(str(tmp_path / "file" / "x"))
    with pytest.raises(WorldError, match=r"nonsense://x: cannot be written to: .*nonsense"):
        place("nonsense://x")


def test_a_probe_goes_through_fsspec() -> None:
    probe = place("memory://bucket/checkpoints")
    assert trouble(probe) == ""
    assert "is another directory" in trouble(replace(probe, word="x"))


def test_the_command_prints_the_script(tmp_path: Path) -> None:
    ones = str(Path(sys.executable).with_name("ones"))
    done = subprocess.run(
        [ones, "slurm", "script", "--nodes", "4", "--gpus-per-node", "4", "--time", "12:00:00",
         "--state", str(tmp_path), "--option=--partition=gpu"],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert "#SBATCH --nodes=4\n#SBATCH --gpus-per-node=4\n#SBATCH --time=12:00:00" in done.stdout
    assert f"exec {ones} slurm serve --state {tmp_path} --lead 300" in done.stdout
    assert json.dumps("--partition=gpu")[1:-1] in done.stdout
