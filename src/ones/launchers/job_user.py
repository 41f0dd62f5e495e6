"""The Unix user that a job's processes run as."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class JobUser:
    """The Unix user of a job, and the directory with all files of that user's jobs."""

    name: str
    uid: int
    directory: str

    @property
    def checkpoints(self) -> Path:
        return Path(self.directory) / "checkpoints"

    def to_json(self, node: str) -> str:
        return json.dumps({**asdict(self), "node": node})
