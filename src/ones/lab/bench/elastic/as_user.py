"""A ones-launchd for benchmarks, which runs jobs as one Unix user. Needs root."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ones.errors import UserError, WorldError
from ones.exec import launchd
from ones.launchers.devices import cpu_slots
from ones.launchers.launchd_client import JobUsers, LaunchdClient, LaunchdError
from ones.launchers.local import NODE, LocalLauncher

STARTED_BY = ("/usr/bin/python3", "-I")


@dataclass(frozen=True, slots=True)
class UserJobs:
    """Starts jobs as a Unix user. `directory`: that user can enter it; job files are there."""

    user: pwd.struct_passwd
    directory: Path

    @property
    def client(self) -> LaunchdClient:
        return LaunchdClient(self.directory / "run" / "launchd.sock")

    def launcher(self, root: Path, slots: int) -> LocalLauncher:
        """A launcher for the next run, after the files of the last run are removed."""
        shutil.rmtree(self.directory / "jobs" / self.user.pw_name / "live", ignore_errors=True)
        users = JobUsers(self.client, python=(sys.executable,), keeps_checkpoints=True)
        return LocalLauncher(root, cpu_slots(NODE, slots), users=users)


@contextlib.contextmanager
def jobs_of_user(name: str) -> Iterator[UserJobs]:
    """Raises UserError if there is no such user, or jobs cannot run as that user."""
    user = _checked(name)
    # not below /tmp: jobs have one of their own
    directory = Path(tempfile.mkdtemp(prefix="ones-bench-", dir="/var/lib"))
    tree, log = f"onesbench{os.getpid()}", directory / "launchd.log"
    directory.chmod(0o755)
    program, config = directory / "ones-launchd", directory / "launchd.conf"
    shutil.copyfile(launchd.__file__, program)
    config.write_text(
        f"[launchd]\nservice = root\nusers = {name}\njobs = {directory}/jobs\ntree = {tree}\n"
        f"socket = {directory}/run/launchd.sock\nhttp = {directory}/run/http\n"
    )
    with log.open("wb") as errors:
        process = subprocess.Popen([*STARTED_BY, str(program), str(config)], stderr=errors)
    jobs = UserJobs(user, directory)
    try:
        with contextlib.closing(jobs.client) as client:
            client.resolve(name)
        yield jobs
    except LaunchdError as problem:
        said = log.read_text().splitlines()
        raise WorldError(
            said[-1] if process.poll() is not None and said else str(problem)
        ) from None
    finally:
        process.kill()
        process.wait()
        for path in (*Path("/sys/fs/cgroup").glob(f"*/{tree}"), Path("/sys/fs/cgroup", tree)):
            with contextlib.suppress(OSError):
                path.rmdir()
        shutil.rmtree(directory, ignore_errors=True)


def _checked(name: str) -> pwd.struct_passwd:
    if os.geteuid() != 0:
        raise UserError(f"--unix {name}: needs root, to start ones-launchd")
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise UserError(f"--unix {name}: there is no such Unix user") from None
    with contextlib.suppress(OSError):
        done = subprocess.run(
            [sys.executable, "-c", "import ones.exec, torch"], cwd="/", capture_output=True,
            user=user.pw_uid, group=user.pw_gid, extra_groups=[], check=False,
        )  # fmt: skip
        if done.returncode == 0:
            return user
    raise UserError(
        f"--unix {name}: that user cannot run {sys.executable} with ONES and torch;"
        " install them where every user can read them, such as /opt/ones"
    )
