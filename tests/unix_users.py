"""A machine of several Unix users for tests: users that the test makes, and a real ones-launchd.

It needs root and cgroups of v1 (or a v2 with all controllers). Everything has the number of the
test's process in its name; what a killed test has left is removed by the next one.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import ones
from ones.exec import launchd
from ones.launchers.devices import cpu_slots
from ones.launchers.launchd_client import JobLimits, JobUsers, LaunchdClient
from ones.launchers.local import LocalLauncher
from tests.processes import is_alive, wait_for

PREFIX = "onest"
SYSTEM_PYTHON = "/usr/bin/python3"
_MADE = re.compile(rf"{PREFIX}(\d+)[a-z]?")


def why_not() -> str:
    """Why this machine cannot run these tests; empty if it can."""
    if os.geteuid() != 0:
        return "needs root: it makes Unix users"
    needed = [ones.__file__, *(path for path in sys.path if "site-p" in path)]
    if any(Path(path).resolve().is_relative_to("/tmp") for path in needed):
        return "the project or its libraries are below /tmp: jobs of users have a /tmp of their own"
    if not all(map(shutil.which, ("useradd", "userdel"))) or not Path(SYSTEM_PYTHON).exists():
        return f"needs useradd, userdel and {SYSTEM_PYTHON}"
    probe = f"{PREFIX}{os.getpid()}probe"  # not the tree of a machine that is in use
    try:
        found = launchd.find_cgroup("auto", probe)
        missing = found.missing
        _remove_cgroups(probe)
    except (launchd.RefusedError, OSError) as problem:
        return f"cgroups cannot be made here: {problem}"
    if not isinstance(found, launchd.CgroupV1) or missing:
        return f"needs cgroups v1 with memory, cpu, pids and devices; missing: {missing}"
    return "" if python_for_users() else "no Python that other users can run, with this version"


def python_for_users() -> tuple[str, ...]:
    """An interpreter of the tests' version that every user can run."""
    for path in (sys.executable, f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}"):
        if Path(path).exists() and _is_open(Path(path).resolve()):
            return (path,)
    return ()


def _is_open(path: Path) -> bool:
    return all(part.stat().st_mode & 0o005 == 0o005 for part in (path, *path.parents))


class Machine:
    """`root`: a directory that all users can enter. The service is `service`, or this process."""

    def __init__(self, *, service: bool = False, **config: str) -> None:
        self.name = f"{PREFIX}{os.getpid()}"
        _remove_left_overs()
        self.root = Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir="/var/lib"))
        self.root.chmod(0o755)
        self.users = [self._add(f"{self.name}{letter}") for letter in "abc"]
        self.ann, self.bob, self.cy = self.users
        self.service = self._add(f"{self.name}s", "--system") if service else pwd.getpwuid(0)
        self.python = python_for_users()
        self.path = self._library()
        self.jobs, self.socket = self.root / "jobs", self.root / "run" / "launchd.sock"
        self.config = {
            "service": self.service.pw_name,
            "users": f"{self.ann.pw_name} {self.bob.pw_name}",
            "jobs": str(self.jobs),
            "socket": str(self.socket),
            "http": str(self.root / "run" / "http"),
            "tree": self.name,
            **config,
        }
        self.program = self.root / "ones-launchd"
        shutil.copyfile(launchd.__file__, self.program)
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def _library(self) -> str:
        """PYTHONPATH of the users: a copy of the package, because the original may be hidden."""
        shutil.copytree(Path(ones.__file__).parent, self.root / "lib" / "ones")
        return os.pathsep.join([str(self.root / "lib"), *(p for p in sys.path if "site-p" in p)])

    @staticmethod
    def _add(name: str, *options: str) -> pwd.struct_passwd:
        subprocess.run(
            ["useradd", "--no-create-home", "--home-dir", "/nonexistent", *options, name],
            check=True, capture_output=True,
        )  # fmt: skip
        return pwd.getpwnam(name)

    def write_config(self) -> Path:
        path = self.root / "launchd.conf"
        lines = [f"{key} = {value}" for key, value in self.config.items()]
        path.write_text("\n".join(["[launchd]", *lines, ""]))
        return path

    def start(self) -> None:
        self.log = self.root / "launchd.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [SYSTEM_PYTHON, "-I", str(self.program), str(self.write_config())],
                stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        process = self.process
        wait_for(lambda: process.poll() is not None or b"ready " in self.log.read_bytes())
        assert process.poll() is None, self.log.read_text()

    def kill(self) -> None:
        """Ends ones-launchd only; jobs go on."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def client(self) -> LaunchdClient:
        return LaunchdClient(self.socket)

    def launcher(
        self, root: Path, slots: int = 2, limits: JobLimits | None = None
    ) -> LocalLauncher:
        users = JobUsers(self.client(), python=self.python, limits=limits)
        return LocalLauncher(root, cpu_slots("n0", slots), idle_seconds=2.0, users=users)

    def processes(self, *users: pwd.struct_passwd) -> list[int]:
        """Processes of the users."""
        wanted = {user.pw_uid for user in users or self.users}
        found = []
        for name in os.listdir("/proc"):
            with suppress(OSError):
                if name.isdecimal() and os.stat(f"/proc/{name}").st_uid in wanted:
                    found.append(int(name))
        return [pid for pid in found if is_alive(pid)]

    def remove(self) -> None:
        self.kill()
        _end(self.name)
        shutil.rmtree(self.root, ignore_errors=True)


@pytest.fixture(scope="session")
def shared_machine() -> Iterator[Machine]:
    """The service is this process, which is root."""
    if reason := why_not():
        pytest.skip(reason)
    made = Machine()
    yield made
    made.remove()


@pytest.fixture(scope="module")
def machine(shared_machine: Machine) -> Iterator[Machine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", shared_machine.path)
        yield shared_machine


def _remove_left_overs() -> None:
    for name in {match[0] for user in pwd.getpwall() if (match := _MADE.fullmatch(user.pw_name))}:
        pid = int(_MADE.fullmatch(name)[1])  # type: ignore[index]
        if not is_alive(pid) or pid == os.getpid():
            _end(f"{PREFIX}{pid}")
            for path in Path("/var/lib").glob(f"{PREFIX}{pid}-*"):
                shutil.rmtree(path, ignore_errors=True)


def _end(name: str) -> None:
    """Kills the processes of users with this name and removes them, and their cgroups."""
    users = [user for user in pwd.getpwall() if re.fullmatch(f"{name}[a-z]", user.pw_name)]
    uids = {user.pw_uid for user in users}

    def left() -> list[int]:
        found = []
        for entry in os.listdir("/proc"):
            with suppress(OSError):
                if entry.isdecimal() and os.stat(f"/proc/{entry}").st_uid in uids:
                    found.append(int(entry))
        return found

    def killed() -> bool:
        for pid in left():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        return not left()

    wait_for(killed, "processes of test users are left")
    for user in users:
        subprocess.run(["userdel", user.pw_name], capture_output=True, check=False)
    _remove_cgroups(name)


def _remove_cgroups(name: str) -> None:
    for controller in Path("/sys/fs/cgroup").iterdir():
        tree = controller / name
        if tree.is_dir():
            for path in (*tree.iterdir(), tree):
                if path.is_dir():
                    with suppress(OSError):
                        path.rmdir()
