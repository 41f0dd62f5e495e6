"""What run directories tell to those who only read: `live/JOB/NODE/LAUNCH`, and `ended/...` of
jobs that were forgotten."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from ones.exec import Chunk, read_output
from ones.launchers.api import Process
from ones.launchers.keeper import on_disk


def history(root: Path, job: str) -> list[Process]:
    """Launches of a job in the order of their start."""
    found = []
    for base in (root / "ended", root / "live"):
        for run_dir in sorted((base / quote(job, safe="")).glob("*")):
            for spec, pid, began, exit in on_disk(run_dir):
                process = Process(id=spec.id, job=job, slots=spec.slots, pid=pid, exit=exit)
                found.append((began, process))
    return [process for _, process in sorted(found, key=lambda entry: entry[0])]


def output(root: Path, job: str, id: str, offset: int, limit: int) -> Chunk:
    for base in (root / "live", root / "ended"):
        for run_dir in (base / quote(job, safe="")).glob("*"):
            if (run_dir / id).is_dir():
                return read_output(run_dir / id, offset, limit)
    return Chunk(b"", 0, 0)
