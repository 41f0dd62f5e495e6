"""The directory that holds all the service keeps, and the lock that lets one controller in.

ones.db         the database (and its -wal and -shm files)
runs/           run directories of jobs: their processes and their output
checkpoints/    of jobs, unless they name another place
key             from which tokens of jobs follow
admin.token     of the user who first started the service
tls/            our certificate authority and certificate, unless others are given
controller.json where the running controller is reached
controller.log  what it has to say
lock            held by the controller while it lives
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

#: a lock that stays for longer than these is a controller's
MOST_TRIES, TRY_SECONDS = 10, 0.05
_PRIVATE = ("ones.db", "ones.db-wal", "ones.db-shm", "key", "admin.token", "controller.log")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    pid: int
    url: str


class StateDir:
    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().absolute()
        self._lock: int | None = None

    @classmethod
    def of(cls, path: str) -> StateDir:
        """As the setting says; empty: where a user's programs keep their state."""
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
        """The certificate that clients trust, if the service made its own."""
        return self.tls / "authority.pem"

    def make(self) -> None:
        """Made if it is not there; closed to other users of the machine if it is."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._close()
            for directory in (self.runs, self.checkpoints):
                directory.mkdir(mode=0o700, exist_ok=True)
        except OSError as problem:
            raise WorldError(f"{problem.filename}: {problem.strerror}") from problem

    def _close(self) -> None:
        """For the service's user only. SQLite gives its -wal and -shm files the mode of ones.db."""
        owner, mine = self.path.stat().st_uid, os.geteuid()
        if owner != mine:
            raise UserError(
                f"{self.path}: belongs to user {owner}, and the service runs as user {mine};"
                " choose a directory below it with --state"
            )
        self.path.chmod(0o700)
        for name in _PRIVATE:
            with suppress(FileNotFoundError):
                (self.path / name).chmod(0o600)

    def lock(self) -> None:
        """One controller for each directory: a second one is refused."""
        handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        tries = 0
        while not _locked(handle, fcntl.LOCK_EX):
            tries += 1
            if tries > MOST_TRIES:
                os.close(handle)
                where = self.address()
                who = f" (pid {where.pid}, {where.url})" if where else ""
                raise UserError(
                    f"{self.path}: another controller is running here{who}; stop it with: ones down"
                )
            time.sleep(TRY_SECONDS)  # it may be a command that only looks
        os.ftruncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
        self._lock = handle

    def holder(self) -> int | None:
        """The controller's process, if one lives here; known before it can be reached."""
        if not self.is_locked():
            return None
        try:
            return int((self.path / "lock").read_text())
        except (OSError, ValueError):  # it has the lock and says so in a moment
            address = self.address()
            return address.pid if address is not None else None

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def is_locked(self) -> bool:
        try:
            handle = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return not _locked(handle, fcntl.LOCK_SH)  # who only looks does not see each other
        finally:
            os.close(handle)

    def write_address(self, address: Address) -> None:
        path = self.path / "controller.json"
        beside = path.with_suffix(".new")
        beside.write_text(json.dumps(asdict(address)))
        beside.replace(path)

    def address(self) -> Address | None:
        """Of the controller that was here last, whether it still is or not."""
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
