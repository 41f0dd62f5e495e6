"""Calls of Slurm's commands: scontrol describes an allocation, srun starts an agent."""

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
    nodes: dict[str, list[int]]  # name -> indices of its GPUs in the allocation
    ends_at: float  # in seconds since 1970; 0: never


def run(*command: str) -> str:
    if shutil.which(command[0]) is None:
        raise UserError(f"{command[0]} was not found: run this on a machine of the Slurm cluster")
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
    """Returns the allocation that the output of `scontrol show job -d` describes."""
    fields = dict(re.findall(r"(\w+)=(\S*)", text))
    nodes: dict[str, list[int]] = {}
    for short, rest in re.findall(r"^\s*Nodes=(\S+) (.*)$", text, re.MULTILINE):
        gpus = [
            index
            for _, indices in re.findall(r"gpu(?::[\w.-]+)?:(\d+)\(IDX:([\d,-]+)\)", rest)
            for index in numbers(indices)
        ]
        if not gpus:  # without device files in gres.conf Slurm prints their number only
            gpus = list(range(sum(int(n) for n in re.findall(r"gpu(?::[\w.-]+)?:(\d+)\b", rest))))
        nodes.update({name: gpus for name in expand(short)})
    return AllocationInfo(fields.get("JobState", ""), nodes, _seconds(fields.get("EndTime", "")))


def numbers(text: str) -> list[int]:
    """The indices of a list in Slurm's notation.

    >>> numbers("0-2,5")
    [0, 1, 2, 5]
    """
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def _seconds(text: str) -> float:
    """Seconds since 1970 of a local time as Slurm prints it; 0 if it is not a time."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return 0.0
    return time.mktime(parsed.timetuple())


def agent_command(id: str, node: str, gpus: int, command: list[str]) -> list[str]:
    """The srun command of a step on one node, beside other steps of the allocation."""
    return [
        "srun", f"--jobid={id}", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}",
        *([f"--gpus-per-node={gpus}"] if gpus else []),
        "--mem=0", "--cpu-bind=none", "--input=none", "--unbuffered", f"--job-name=ones-{node}",
        *command,
    ]  # fmt: skip
