"""Archives of the code of jobs: one file for all jobs of a user with the same files.

snapshots/USER/DIGEST.tar.gz    an archive, named by its SHA-256
snapshots/USER/DIGEST.part      one that is being uploaded
snapshots/USER/DIGEST.jobs/JOB  an empty file for each job or array that uses it
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ones.control.limits import LimitError
from ones.errors import InvalidSettingError
from ones.exec.snapshot import MB, SnapshotError, check

#: an archive that no job uses is kept for this time: its job is about to be submitted
UNUSED_SECONDS = 3600.0
DIGEST = re.compile(r"[0-9a-f]{64}")


class Snapshots:
    """The archives below a directory. Methods may be called from any thread."""

    def __init__(self, root: Path, max_mb: float) -> None:
        self._root, self.max_mb = root, max_mb

    def path(self, owner: str, digest: str) -> Path:
        return self._file(owner, digest, ".tar.gz")

    def has(self, owner: str, digest: str) -> bool:
        """Whether the archive is there; if so, it stays for UNUSED_SECONDS."""
        try:
            os.utime(self.path(owner, digest))
        except FileNotFoundError:
            return False
        return True

    def write(self, owner: str, digest: str, part: bytes, offset: int, total: int) -> bool:
        """Write a part of an archive of `total` bytes; True once it is complete.

        Two uploads of one archive at a time write the same bytes to the same place.
        """
        if total > self.max_mb * MB:
            problem = f"snapshot: {total / MB:.1f} MB packed is too large"
            raise LimitError(problem, "max_snapshot_mb", self.max_mb)
        if self.has(owner, digest):
            return True
        if offset + len(part) > total:
            raise InvalidSettingError(f"offset: {offset} and {len(part)} bytes exceed {total}")
        path = self._file(owner, digest, ".part")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "r+b") as file:
            file.seek(offset)
            file.write(part)
            if offset + len(part) < total:
                return False
            file.truncate(total)
            file.seek(0)
            data = file.read()
            self._check(path, digest, data)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileNotFoundError):  # the same upload a second time was faster
            path.rename(self.path(owner, digest))
        return True

    def _check(self, path: Path, digest: str, data: bytes) -> None:
        try:
            check(data, digest, round(self.max_mb * MB))
        except SnapshotError as problem:
            path.unlink(missing_ok=True)
            raise InvalidSettingError(f"snapshot: {problem}") from problem

    def use(self, owner: str, digest: str, job: str) -> None:
        """Keep the archive as long as the files of this job or array."""
        if not self.has(owner, digest):
            raise InvalidSettingError(
                f"snapshot: {digest[:12]} is not here: it was removed with the files of its jobs"
                " (keep_output_days), or was never uploaded; submit the job anew"
            )
        users = self._file(owner, digest, ".jobs")
        users.mkdir(mode=0o700, exist_ok=True)
        (users / job).touch()

    def prune(self, is_kept: Mapping[str, bool]) -> list[str]:
        """Remove the archives that no job uses; returns their digests.

        `is_kept`: whether the files of each known job or array stay.
        """
        removed = []
        now = time.time()
        for path in self._root.glob("*/*"):
            with suppress(OSError):
                if path.suffix == ".jobs" or now - path.stat().st_mtime < UNUSED_SECONDS:
                    continue
                digest = path.name.partition(".")[0]
                users = path.with_name(f"{digest}.jobs")
                if any(is_kept.get(name, False) for name in _names(users)):
                    continue
                path.unlink()
                shutil.rmtree(users, ignore_errors=True)
                removed.append(digest)
        return removed

    def _file(self, owner: str, digest: str, suffix: str) -> Path:
        if not DIGEST.fullmatch(digest):
            raise InvalidSettingError(f"snapshot: {digest[:100]!r} is not a SHA-256 in hex digits")
        return self._root / owner / f"{digest}{suffix}"


def _names(directory: Path) -> list[str]:
    return os.listdir(directory) if directory.is_dir() else []
