"""Slurm's own commands: what they report about an allocation, and how an agent is started."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from ones.errors import UserError, WorldError

SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class AllocationInfo:
    """An allocation as Slurm describes it."""

    state: str
    nodes: dict[str, list[int]]  # name -> indices of its GPUs that are ours
    ends_at: float  # in seconds since 1970; 0: never


def run(*command: str) -> str:
    if shutil.which(command[0]) is None:
        raise UserError(f"{command[0]} is not here: this is not a machine of a Slurm cluster")
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=SECONDS,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired as problem:
        raise WorldError(f"{command[0]}: no answer in {SECONDS:g} s") from problem
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise WorldError(f"{' '.join(command)}: {lines[-1] if lines else done.returncode}")
    return done.stdout


def describe(id: str) -> AllocationInfo:
    return parse(run("scontrol", "show", "job", "-d", id), hostnames)


def hostnames(short: str) -> list[str]:
    """The names that `n[1-3]` stands for."""
    return run("scontrol", "show", "hostnames", short).split()


def parse(text: str, expand: Callable[[str], list[str]] = hostnames) -> AllocationInfo:
    """From the output of `scontrol show job -d`."""
    fields = dict(re.findall(r"(\w+)=(\S*)", text))
    nodes: dict[str, list[int]] = {}
    for short, rest in re.findall(r"^\s*Nodes=(\S+) (.*)$", text, re.MULTILINE):
        gpus = [
            index
            for _, indices in re.findall(r"gpu(?::[\w.-]+)?:(\d+)\(IDX:([\d,-]+)\)", rest)
            for index in numbers(indices)
        ]
        if not gpus:  # without files in gres.conf Slurm counts them and does not name them
            gpus = list(range(sum(int(n) for n in re.findall(r"gpu(?::[\w.-]+)?:(\d+)\b", rest))))
        nodes.update({name: gpus for name in expand(short)})
    return AllocationInfo(fields.get("JobState", ""), nodes, _seconds(fields.get("EndTime", "")))


def numbers(text: str) -> list[int]:
    """
    >>> numbers("0-2,5")
    [0, 1, 2, 5]
    """
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def _seconds(text: str) -> float:
    """Slurm prints local times."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return 0.0
    return time.mktime(parsed.timetuple())


def agent_command(id: str, node: str, gpus: int, command: list[str]) -> list[str]:
    """One step on one node, beside other steps of the allocation."""
    return [
        "srun", f"--jobid={id}", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}",
        *([f"--gpus-per-node={gpus}"] if gpus else []),
        "--mem=0", "--cpu-bind=none", "--input=none", "--unbuffered", f"--job-name=ones-{node}",
        *command,
    ]  # fmt: skip
