"""The state directory of a service, and the lock that lets one controller use it.

ones.db         the database (and its -wal and -shm files)
runs/           run directories of jobs: their processes and their output
checkpoints/    checkpoints of jobs, unless the settings name another path
snapshots/      archives of the code of jobs, by user
archive/        events that were moved out of the database
key             key from which tokens of jobs are derived
admin.token     token of the first admin
tls/            our certificate authority and certificate, unless others are given
controller.json address of the running controller
controller.log  log of the controller
lock            held by the controller while it runs
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ones.errors import UserError, WorldError

#: a lock that is held for longer belongs to a controller
MOST_TRIES, TRY_SECONDS = 10, 0.05
_PRIVATE = ("ones.db", "ones.db-wal", "ones.db-shm", "key", "admin.token", "controller.log")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where the controller listens, and its process."""

    pid: int
    url: str


class StateDir:
    """Paths and small files of a state directory."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().absolute()
        self._lock: int | None = None

    @classmethod
    def of(cls, path: str) -> StateDir:
        """The directory of the setting `service.state`; empty: `~/.local/state/ones`."""
        if path:
            return cls(Path(path))
        base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        return cls(Path(base) / "ones")

    @property
    def database(self) -> str:
        return f"sqlite:///{self.path / 'ones.db'}"

    @property
    def runs(self) -> Path:
        return self.path / "runs"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def snapshots(self) -> Path:
        return self.path / "snapshots"

    @property
    def key(self) -> Path:
        return self.path / "key"

    @property
    def token(self) -> Path:
        return self.path / "admin.token"

    @property
    def log(self) -> Path:
        return self.path / "controller.log"

    @property
    def tls(self) -> Path:
        return self.path / "tls"

    @property
    def authority(self) -> Path:
        """The certificate that clients trust, if the service has made its own."""
        return self.tls / "authority.pem"

    def make(self) -> None:
        """Create the directory if needed, readable only by the user of the service."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._make_private()
            for directory in (self.runs, self.checkpoints, self.snapshots):
                directory.mkdir(mode=0o700, exist_ok=True)
        except OSError as problem:
            raise WorldError(f"{problem.filename}: {problem.strerror}") from problem

    def _make_private(self) -> None:
        """Set modes 0700 and 0600. SQLite gives its -wal and -shm files the mode of ones.db."""
        owner, mine = self.path.stat().st_uid, os.geteuid()
        if owner != mine:
            raise UserError(
                f"{self.path}: belongs to user {owner}, but the service runs as user {mine};"
                " choose a directory below it with --dir"
            )
        self.path.chmod(0o700)
        for name in _PRIVATE:
            with suppress(FileNotFoundError):
                (self.path / name).chmod(0o600)

    def lock(self) -> None:
        """Take the lock. Raises UserError if another controller has it."""
        handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        tries = 0
        while not _locked(handle, fcntl.LOCK_EX):
            tries += 1
            if tries > MOST_TRIES:
                os.close(handle)
                address = self.address()
                holder = f" (pid {address.pid}, {address.url})" if address else ""
                raise UserError(
                    f"{self.path}: is used by another controller{holder}; stop it with: ones down"
                )
            time.sleep(TRY_SECONDS)  # `is_locked` of another process holds it for a moment
        os.ftruncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
        self._lock = handle

    def holder(self) -> int | None:
        """Process id of the running controller, also before it can be reached; None if none."""
        if not self.is_locked():
            return None
        try:
            return int((self.path / "lock").read_text())
        except (OSError, ValueError):  # locked, and the process id is not written yet
            address = self.address()
            return address.pid if address is not None else None

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def is_locked(self) -> bool:
        """Whether a controller runs on this directory."""
        try:
            handle = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            # a shared lock: concurrent checks do not see each other
            return not _locked(handle, fcntl.LOCK_SH)
        finally:
            os.close(handle)

    def write_address(self, address: Address) -> None:
        path = self.path / "controller.json"
        beside = path.with_suffix(".new")
        beside.write_text(json.dumps(asdict(address)))
        beside.replace(path)

    def address(self) -> Address | None:
        """Address of the last controller, whether it still runs or not."""
        try:
            return Address(**json.loads((self.path / "controller.json").read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def write_token(self, token: str) -> None:
        handle = os.open(self.token, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(token + "\n")

    def read_token(self) -> str | None:
        try:
            return self.token.read_text().strip()
        except OSError:
            return None


def _locked(handle: int, how: int) -> bool:
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
