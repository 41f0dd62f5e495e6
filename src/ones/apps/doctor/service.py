"""Checks of the service: directory, disk, database, address, clock, orphaned workers."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import stat
import time
from pathlib import Path

from ones import __version__
from ones.apps.doctor.findings import GB, NOTE, OK, PROBLEM, WARNING, Finding, Findings
from ones.config import ServiceSettings

LOW_DISK, NO_DISK = 5 * GB, 1 * GB
LARGEST_CHECKED = 200 << 20  # bytes; a larger database is not checked
CLOCK_SECONDS = 5.0
SHOWN_MARKS = 10
NETWORK_FILES = ("nfs", "cifs", "smb", "fuse.sshfs", "9p", "lustre", "ceph")


def state(settings: ServiceSettings) -> Findings:
    from ones.control.statedir import StateDir

    path = StateDir.of(settings.state).path
    nearest = _nearest(path)
    if not os.access(nearest, os.W_OK | os.X_OK):
        yield Finding("state", PROBLEM, f"{nearest}: not writable", "choose another: --dir DIR")
        return
    if not path.exists():
        yield Finding("state", NOTE, f"{path}: does not exist yet; ones up creates it")
    elif not path.is_dir():
        yield Finding("state", PROBLEM, f"{path}: is not a directory", "choose another: --dir")
        return
    else:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            advice = f"chmod 700 {path}"
            yield Finding("state", WARNING, f"{path}: other users may read it ({mode:o})", advice)
        else:
            yield Finding("state", OK, str(path))
    kind = _file_system(nearest)
    if kind.startswith(NETWORK_FILES):
        advice = "put it on a local disk, or the database on PostgreSQL (service.database)"
        yield Finding("state", WARNING, f"{path}: is on {kind}, where locks may fail", advice)


def _nearest(path: Path) -> Path:
    """The path or its nearest parent that exists."""
    return next(p for p in (path, *path.parents) if p.exists())


def _file_system(path: Path) -> str:
    """Type of the file system, by the longest mount point that contains the path."""
    best, kind = "", ""
    try:
        lines = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        _, point, name, *_ = line.split()
        if path.resolve().is_relative_to(point) and len(point) >= len(best):
            best, kind = point, name
    return kind


def disk(settings: ServiceSettings) -> Findings:
    from ones.control.statedir import StateDir

    where = _nearest(StateDir.of(settings.state).path)
    free = shutil.disk_usage(where).free
    text = f"{free / GB:.1f} GB free at {where}"
    if free < NO_DISK:
        yield Finding("disk", PROBLEM, text, "free disk space: writes are about to fail")
    elif free < LOW_DISK:
        yield Finding("disk", WARNING, text, "checkpoints and logs need space")
    else:
        yield Finding("disk", OK, text)


def database(settings: ServiceSettings) -> Findings:
    from ones.control.statedir import StateDir

    path = StateDir.of(settings.state).path / "ones.db"
    if settings.database or not path.is_file():
        return
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5) as connection:
            sound = "ok"
            if path.stat().st_size <= LARGEST_CHECKED:
                sound = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            last = connection.execute("SELECT max(at), count(*) FROM log").fetchone()
        connection.close()
    except sqlite3.Error as problem:
        yield Finding("database", PROBLEM, f"{path}: {problem}", "restore it from a backup")
        return
    if sound != "ok":
        yield Finding("database", PROBLEM, f"{path}: {sound}", "restore it from a backup")
    else:
        megabytes = path.stat().st_size / 1e6
        yield Finding("database", OK, f"{last[1]:,} entries, {megabytes:.1f} MB")
    ahead = (last[0] or 0.0) - time.time()
    if ahead > CLOCK_SECONDS:
        advice = "set the clock; until then, time continues from the last entry"
        yield Finding("clock", PROBLEM, f"{ahead:.0f} s behind the last entry of the log", advice)


def service(settings: ServiceSettings) -> Findings:
    from ones.control.statedir import StateDir

    directory = StateDir.of(settings.state)
    address = directory.address()
    if address is None or not directory.is_locked():
        yield Finding("service", NOTE, "not running", "start it with: ones up")
        yield from _port(settings)
        return
    import httpx

    try:
        answer = httpx.get(f"{address.url}/health", timeout=10, verify=False)
        health = answer.json()
    except (httpx.HTTPError, ValueError) as problem:
        advice = f"see {directory.log}; restart it with ones down and ones up, jobs continue"
        what = f"pid {address.pid} runs, but {address.url} does not respond: {problem}"
        yield Finding("service", PROBLEM, what, advice)
        return
    if health["problems"]:
        yield Finding("service", PROBLEM, "; ".join(health["problems"]), f"see {directory.log}")
    else:
        took = answer.elapsed.total_seconds()
        text = f"{address.url} (pid {address.pid}) responds in {1000 * took:.0f} ms"
        yield Finding("service", OK, text)
    for warning in health.get("warnings", ()):
        yield Finding("service", WARNING, warning, f"see {directory.log}")
    if health["version"] != __version__:
        what = f"the service is ones {health['version']}, this command is {__version__}"
        yield Finding("versions", WARNING, what, "ones down, then ones up; jobs continue")
    yield from _token(address.url, directory.read_token(), str(directory.token))


def _token(url: str, token: str | None, where: str) -> Findings:
    import httpx

    token = os.environ.get("ONES_API_TOKEN") or token
    if token is None:
        yield Finding("token", WARNING, f"{where}: cannot be read", "set ONES_API_TOKEN")
        return
    headers = {"Authorization": f"Bearer {token}"}
    answer = httpx.get(f"{url}/api/cluster", headers=headers, timeout=10, verify=False)
    if answer.status_code == 401:
        advice = "ask an admin for a new token (ones user token NAME)"
        yield Finding("token", PROBLEM, "the service refuses the token", advice)
        return
    yield from _quarantine(url, headers)
    off = answer.json()["now"] - time.time()
    if abs(off) > CLOCK_SECONDS:
        what = f"the service's clock is {abs(off):.0f} s {'ahead' if off > 0 else 'behind'}"
        advice = "the system clock was set while the service ran; if forward: ones down, ones up"
        yield Finding("clock", WARNING, what, advice)
    else:
        yield Finding("clock", OK, f"the service's clock differs by {abs(off):.1f} s")


def _quarantine(url: str, headers: dict[str, str]) -> Findings:
    """The newest reports and events that made the scheduler raise."""
    import httpx

    answer = httpx.get(f"{url}/api/quarantine", headers=headers, timeout=10, verify=False)
    found = answer.json() if answer.status_code == 200 else []
    for mark in found[-SHOWN_MARKS:]:
        what = f"{mark['kind']} of job {mark['job'] or '-'}: {mark['reason']}"
        advice = f"entry {mark['entry']} of the run log is skipped; the job has failed"
        yield Finding("quarantine", WARNING, what, advice)
    if len(found) > SHOWN_MARKS:
        yield Finding("quarantine", NOTE, f"and {len(found) - SHOWN_MARKS} earlier ones")


def _port(settings: ServiceSettings) -> Findings:
    if not settings.port:
        return
    where = f"{settings.host}:{settings.port}"
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((settings.host, settings.port))
    except OSError as problem:
        what = f"{where}: {(problem.strerror or str(problem)).lower()}"
        yield Finding(
            "port", PROBLEM, what, "choose another port; ones up --port 0 takes a free one"
        )
    else:
        yield Finding("port", OK, f"{where} is free")


def workers(settings: ServiceSettings) -> Findings:
    """Worker processes that run while no service does."""
    from ones.control.statedir import StateDir

    directory = StateDir.of(settings.state)
    if directory.is_locked() or not directory.runs.exists():
        return
    mark = f"ONES_JOB_DIR={directory.runs}".encode()
    alive = [pid for pid in os.listdir("/proc") if pid.isdecimal() and _is_marked(pid, mark)]
    if alive:
        what = f"{len(alive)} run while no service does (pid {', '.join(alive[:5])})"
        yield Finding("workers", WARNING, what, "ones up adopts them; ones down stops them")


def _is_marked(pid: str, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
