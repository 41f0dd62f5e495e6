"""Client of ones-launchd, the process of root that starts the jobs of several Unix users.

`exec/launchd.py` has the protocol. A job's ones-exec, and so all its processes, then run as the
job's user, in a cgroup of the job.
"""

from __future__ import annotations

import json
import os
import re
import select
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from ones.errors import WorldError
from ones.exec.cleanup import is_recorded
from ones.exec.records import Exit
from ones.launchers.api import LauncherContext
from ones.launchers.job_user import JobUser
from ones.launchers.supervisor_client import PASSED_ON, StartingSupervisor
from ones.wire.environment import CHECKPOINTS

#: where the installed ones-launchd listens
SOCKET = Path("/run/ones/launchd.sock")
#: the service's own socket for users of this machine; root makes its directory
HTTP_SOCKET = Path("/run/ones/http/ones.sock")
ANSWER_SECONDS = 20.0
#: ones-launchd may be restarted: no request is lost if it is back within this time
RESTART_SECONDS = 3.0
#: to remove the files of a job; then it is ended, and tried again later
REMOVE_SECONDS = 10.0
_MAX_ANSWER = 1 << 16


class LaunchdError(OSError):
    """ones-launchd has refused a request, or does not answer."""


class LaunchdClient:
    """Sends requests to ones-launchd. Any thread may call it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._sock: socket.socket | None = None

    def resolve(self, user: str) -> JobUser:
        """The user, if jobs may run as that user. Raises LaunchdError with the reason if not."""
        answer = self.ask({"do": "resolve", "user": user})
        return JobUser(user, int(answer["uid"]), str(answer["directory"]))

    def ask(self, request: Mapping[str, Any], *handles: int) -> dict[str, Any]:
        """The answer. Connects again if ones-launchd was restarted. Raises LaunchdError."""
        data = json.dumps(request).encode()
        with self._lock:
            deadline = time.monotonic() + RESTART_SECONDS
            while True:
                try:
                    answer = json.loads(self._exchange(data, handles))
                    break
                except (OSError, ValueError) as problem:
                    self._close()
                    if isinstance(problem, TimeoutError) or time.monotonic() > deadline:
                        why = getattr(problem, "strerror", None) or str(problem)
                        raise LaunchdError(
                            f"ones-launchd does not answer at {self.path}: {why.lower()};"
                            " see: systemctl status ones-launchd"
                        ) from problem
                    time.sleep(0.05)
        if not answer.get("ok"):
            raise LaunchdError(str(answer.get("error", "refused")))
        return dict(answer)

    def _exchange(self, data: bytes, handles: Sequence[int]) -> bytes:
        if self._sock is None:
            self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._sock.settimeout(ANSWER_SECONDS)
            self._sock.connect(str(self.path))
        socket.send_fds(self._sock, [data], list(handles))
        answer = self._sock.recv(_MAX_ANSWER)
        if not answer:
            raise ConnectionResetError("it has closed the connection")
        return answer

    def _close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def close(self) -> None:
        with self._lock:
            self._close()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLimits:
    """What the jobs of users get for each slot, and the processes of one job; 0: no limit."""

    memory_mb: int = 0
    processes: int = 4096
    output_mb: int = 0  # of one job, which its ones-exec keeps

    def of(self, slots: int) -> dict[str, int]:
        limits = {"cpu_weight": min(10_000, 100 * max(1, slots))}
        if self.memory_mb:
            limits["memory_mb"] = max(64, self.memory_mb * max(1, slots))
        if self.processes:
            limits["processes"] = self.processes
        return limits

    @classmethod
    def share_of(
        cls, slots: int, memory_gb: float, processes: int, output_mb: int = 0
    ) -> JobLimits:
        """The given memory for each slot, or with 0 an equal share of 90 % of the machine's."""
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
        share = memory_gb * 1024 if memory_gb else 0.9 * whole / max(1, slots)
        return cls(memory_mb=round(share), processes=processes, output_mb=output_mb)


class JobUsers:
    """Starts the jobs of a launcher as their Unix users."""

    def __init__(
        self,
        client: LaunchdClient,
        *,
        limits: JobLimits | None = None,
        python: Sequence[str] = (sys.executable,),
        keeps_checkpoints: bool = False,
    ) -> None:
        """`keeps_checkpoints`: they are in the directories of users, not where the job says."""
        self.client, self._python = client, python
        self._limits = limits or JobLimits()
        self._keeps_checkpoints = keeps_checkpoints
        self.tree = str(client.ask({"do": "hello"})["tree"])

    @classmethod
    def of(cls, context: LauncherContext) -> Self | None:
        """None if the service has no ones-launchd."""
        if not context.launchd:
            return None
        client = LaunchdClient(Path(context.launchd))
        try:
            return cls(client, keeps_checkpoints=context.users_checkpoints)
        except LaunchdError as problem:
            raise WorldError(str(problem)) from problem

    def set_limits(self, slots: int, memory_gb: float, processes: int, output_mb: int) -> None:
        self._limits = JobLimits.share_of(slots, memory_gb, processes, output_mb)

    def supervisor(self, user: JobUser, job: str) -> UserSupervisor:
        return UserSupervisor(self.client, user, job, self._limits, self._python)

    def checkpoints_of(self, user: JobUser, job: str) -> dict[str, str]:
        """The variable that names where a job saves its work."""
        return {CHECKPOINTS: str(user.checkpoints / job)} if self._keeps_checkpoints else {}


class UserSupervisor:
    """Starts the ones-exec of one job through ones-launchd, and ends what it leaves."""

    def __init__(
        self,
        client: LaunchdClient,
        user: JobUser,
        job: str,
        limits: JobLimits,
        python: Sequence[str],
    ) -> None:
        self.user = user
        self.owner: int | None = user.uid
        self._client, self._limits, self._python = client, limits, python
        self._cgroup = cgroup_of(job)
        self._devices: dict[str, str] = {}  # slot -> device file, of the slots in use
        self._runs = False
        self._memory_kills = 0

    def start(self, run_dir: Path, options: Sequence[str]) -> StartingSupervisor:
        output, end = os.pipe()
        file = os.fdopen(output, "rb")
        passed = [*PASSED_ON, "PYTHONPATH"]
        command = [*self._python, "-m", "ones.exec", str(run_dir), *options]
        if self._limits.output_mb:
            command.append(f"--output-mb={self._limits.output_mb}")
        try:
            self._client.ask(
                {
                    "do": "start",
                    "user": self.user.name,
                    "job": self._cgroup,
                    "argv": [*command, f"--service={os.geteuid()}"],
                    "env": {name: os.environ[name] for name in passed if name in os.environ},
                    **self._resources(self._devices),
                },
                end,
            )
        except LaunchdError:
            file.close()
            raise
        finally:
            os.close(end)
        self._runs = True
        return StartingSupervisor(file)

    def clean_up(self, run_dir: Path) -> bool:
        """Kills every process of the job. False if some are left: ask again."""
        if not self._client.ask({"do": "stop", "job": self._cgroup})["empty"]:
            return False
        self._runs = False
        return True

    def is_recorded(self, run_dir: Path) -> bool:
        return is_recorded(run_dir, self.owner)

    def explained(self, exit: Exit) -> Exit:
        """The exit of a killed worker, with the reason if its job had used up its memory."""
        kills = 0
        with suppress(LaunchdError):
            kills = int(self._client.ask({"do": "watch", "job": self._cgroup})["memory_kills"])
        if kills <= self._memory_kills:
            return exit
        self._memory_kills = kills
        most = self._limits.of(len(self._devices)).get("memory_mb", 0)
        message = f"killed: the job used more memory than it has on its slots ({most} MB)"
        return replace(exit, message=message)

    def use(self, slots: Mapping[str, str]) -> None:
        """Lets the job use slots (with their device files), and the memory that comes with them."""
        if set(slots) - set(self._devices):
            self._set({**self._devices, **slots})

    def give_back(self, slots: Sequence[str]) -> None:
        """Takes slots from the job. Processes that still have their devices open are killed."""
        if set(slots) & set(self._devices):
            self._set({id: path for id, path in self._devices.items() if id not in slots})

    def _set(self, devices: dict[str, str]) -> None:
        if self._runs:
            change = {"do": "change", "job": self._cgroup, **self._resources(devices)}
            self._client.ask(change)
        self._devices = devices

    def adopt(self, slots: Mapping[str, str]) -> None:
        """Takes over a job that an earlier controller started on these slots."""
        self._devices = dict(slots)
        self._runs = True

    def _resources(self, devices: Mapping[str, str]) -> dict[str, Any]:
        paths = sorted({path for path in devices.values() if path})
        return {"devices": paths, "limits": self._limits.of(len(devices))}


def cgroup_of(job: str) -> str:
    """The name of a job's cgroup. A job's own name is one already, except in tests.

    >>> cgroup_of("bert-7"), cgroup_of("../x")
    ('bert-7', '_:2e:2e:2fx')
    """
    name = re.sub(r"[^A-Za-z0-9_-]", lambda found: f":{ord(found[0]):x}", job)
    return name if re.match(r"[A-Za-z0-9_]", name) else f"_{name}"


def remove_as_user(
    client: LaunchdClient, user: JobUser, job: str, *paths: Path, seconds: float = REMOVE_SECONDS
) -> None:
    """Removes directories of a job as its user. That user may stop the process that does it.

    Raises LaunchdError if it has not ended in time; what is left is there for the next call.
    """
    output, end = os.pipe()
    try:
        client.ask(
            {
                "do": "start", "user": user.name, "job": f"{cgroup_of(job)}:rm",
                "argv": ["/bin/rm", "-rf", "--", *map(str, paths)], "env": {}, "devices": [],
                "limits": {"processes": 16},
            },
            end,
        )  # fmt: skip
        os.close(end)
        end = -1
        ended, _, _ = select.select([output], [], [], seconds)  # it writes nothing
        client.ask({"do": "stop", "job": f"{cgroup_of(job)}:rm"})
        if not ended:
            raise LaunchdError(f"files of job {job} are not removed after {seconds:g} s")
    finally:
        os.close(output)
        if end >= 0:
            os.close(end)
