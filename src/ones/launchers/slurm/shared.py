"""What controller, agents and allocations say to each other through the directory they share."""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE, LOST = "here", "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """In seconds."""

    ping: float = 1.0  # between two words on a line
    suspect: float = 6.0  # a node that is silent for so long is in doubt
    condemn: float = 20.0  # and for so long is given up: it is told so, if it listens
    lease: float = 15.0  # so long its workers may run on after that, until they end by themselves
    margin: float = 2.0  # beyond the lease, before its slots count as free of them

    @classmethod
    def from_text(cls, text: str) -> Timing:
        return cls(**json.loads(text)) if text else cls()

    def to_text(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationFile:
    """`stop_at`: workers that are still there have to save their work and go. 0: not known yet."""

    id: str
    nodes: dict[str, list[int]]  # name -> indices of its GPUs that are ours
    hosts: dict[str, str] = field(default_factory=dict)  # name -> what Slurm calls it
    ends_at: float = 0.0
    stop_at: float = 0.0
    ending: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentsAddress:
    port: int
    hosts: list[str] = field(default_factory=list)


class Shared:
    """The files below the root of the runs."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def make(self) -> None:
        for name in ("", "allocations", "nodes", "live", "ended"):
            (self.root / name).mkdir(mode=0o700, parents=True, exist_ok=True)

    # how they know each other

    def key(self) -> bytes:
        """The same for all who may read this directory; made by whoever comes first."""
        path = self.root / "agents.key"
        with suppress(FileExistsError):
            beside = self.root / f"agents.key.{secrets.token_hex(4)}"
            handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(secrets.token_bytes(32))
            try:
                os.link(beside, path)
            finally:
                beside.unlink()
        return path.read_bytes()

    def write_address(self, address: AgentsAddress) -> None:
        _write(self.root / "agents.json", json.dumps(asdict(address)))

    def address(self) -> AgentsAddress | None:
        try:
            return AgentsAddress(**json.loads((self.root / "agents.json").read_text()))
        except (OSError, ValueError, TypeError, RecursionError):
            return None

    # the last word on a node

    def say(self, node: str, word: str) -> None:
        _write(self.root / "nodes" / node, word)

    def word(self, node: str) -> str:
        """Read anew: over NFS, opening a file asks the server."""
        try:
            return (self.root / "nodes" / node).read_text().strip()
        except FileNotFoundError:
            return HERE

    # allocations

    def write_allocation(self, allocation: AllocationFile) -> None:
        path = self.root / "allocations" / f"{allocation.id}.json"
        _write(path, json.dumps(asdict(allocation)))

    def allocation(self, id: str) -> AllocationFile | None:
        try:
            text = (self.root / "allocations" / f"{id}.json").read_text()
            return AllocationFile(**json.loads(text))
        except (OSError, ValueError, TypeError, RecursionError):
            return None

    def allocations(self) -> list[AllocationFile]:
        ids = sorted(path.stem for path in (self.root / "allocations").glob("*.json"))
        return [found for id in ids if (found := self.allocation(id)) is not None]

    def others(self, id: str) -> list[AllocationFile]:
        """That somebody sees to at this moment; what the dead have left is removed."""
        found = []
        for other in self.allocations():
            if other.id == id:
                continue
            if self.is_seen_to(other.id):
                found.append(other)
            else:
                self.remove_allocation(other.id)
        return found

    def lock_file(self, id: str) -> Path:
        return self.root / "allocations" / f"{id}.lock"

    def is_seen_to(self, id: str) -> bool:
        try:
            handle = os.open(self.lock_file(id), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    def remove_allocation(self, id: str) -> None:
        (self.root / "allocations" / f"{id}.json").unlink(missing_ok=True)


def proof(key: bytes, side: str, nonce: str, node: str) -> str:
    """That somebody has the key, for one conversation."""
    return hmac.new(key, f"{side} {nonce} {node}".encode(), hashlib.sha256).hexdigest()


def _write(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    beside.write_text(text)
    beside.chmod(0o600)
    beside.replace(path)
