"""What is read from the output of Slurm's commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from ones.errors import UserError
from ones.launchers.slurm.allocation import manage, step_environment
from ones.launchers.slurm.commands import agent_command, describe, parse
from ones.launchers.slurm.settings import Timing

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
    found = parse(TOLD, expand)
    assert found.state == "RUNNING"
    assert found.nodes == {"n1": [0, 1, 2, 3], "n2": [0, 1, 2, 3], "n3": [1, 3]}
    started = parse(TOLD.replace("03:12:01", "03:07:01"), expand)
    assert found.ends_at - started.ends_at == 300


def test_gpus_that_slurm_counts_and_does_not_name_are_numbered() -> None:
    found = parse(TOLD.replace("gpu:4(IDX:0-3)", "gpu:4").replace("(IDX:1,3)", ""), expand)
    assert found.nodes == {"n1": [0, 1, 2, 3], "n2": [0, 1, 2, 3], "n3": [0, 1]}
    none = parse(TOLD.replace(" GRES=gpu:4(IDX:0-3)", " GRES="), expand)
    assert none.nodes["n1"] == []
    assert parse("JobState=RUNNING EndTime=Unknown", expand).ends_at == 0.0


def test_a_step_inherits_no_options_of_the_batch() -> None:
    given = {"PATH": "/bin", "SLURM_CONF": "/c", "SLURM_GPUS_PER_NODE": "4", "SLURM_NTASKS": "9"}
    assert step_environment(given) == {"PATH": "/bin", "SLURM_CONF": "/c"}
    command = agent_command("7", "n2", 4, ["true"])
    assert {"--overlap", "--jobid=7", "--nodelist=n2", "--gpus-per-node=4"} <= set(command)
    assert not any("gpus" in word for word in agent_command("7", "n2", 0, ["true"]))


def test_without_slurm_or_an_allocation_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="scontrol was not found"):
        describe("1")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(UserError, match="must run in a Slurm allocation"):
        manage(tmp_path, cpus=1, lead=10, timing=Timing())
