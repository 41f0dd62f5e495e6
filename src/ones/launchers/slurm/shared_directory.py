"""Files through which controller, agents and allocations exchange their addresses and states."""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from ones.exec.files import try_lock

HERE, LOST = "here", "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationFile:
    """An allocation, as its manager describes it. Times: seconds since 1970; 0: not known."""

    id: str
    nodes: dict[str, list[int]]  # name -> indices of its GPUs in the allocation
    hosts: dict[str, str] = field(default_factory=dict)  # name -> name in Slurm
    ends_at: float = 0.0
    stop_at: float = 0.0  # when workers that are still there must save their work and end
    ending: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentsAddress:
    port: int
    hosts: list[str] = field(default_factory=list)


_File = TypeVar("_File", AllocationFile, AgentsAddress)


class SharedDirectory:
    """The directory `runs` of the state directory, which all nodes must see."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def make(self) -> None:
        for name in ("", "allocations", "nodes", "live", "ended"):
            (self.root / name).mkdir(mode=0o700, parents=True, exist_ok=True)

    # connections

    def key(self) -> bytes:
        """The key of all connections; the first call makes it.

        Raises PermissionError if other users can read the file.
        """
        path = self.root / "agents.key"
        if not path.exists():
            temporary = self.root / f"agents.key.{secrets.token_hex(4)}"
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(secrets.token_bytes(32))
            try:
                with suppress(FileExistsError):
                    os.link(temporary, path)
            finally:
                temporary.unlink()
        mode = path.stat().st_mode
        if mode & 0o077:
            raise PermissionError(
                f"{path}: other users can read it (mode {mode & 0o777:o}); remove it, and a new key"
                " is made"
            )
        return path.read_bytes()

    def write_address(self, address: AgentsAddress) -> None:
        _write(self.root / "agents.json", json.dumps(asdict(address)))

    def address(self) -> AgentsAddress | None:
        return _read(self.root / "agents.json", AgentsAddress)

    # the state of a node

    def set_node_state(self, node: str, state: str) -> None:
        _write(self.root / "nodes" / node, state)

    def node_state(self, node: str) -> str:
        """HERE or LOST. Opens the file each time: over NFS that asks the server."""
        try:
            return (self.root / "nodes" / node).read_text().strip()
        except FileNotFoundError:
            return HERE

    # allocations

    def write_allocation(self, allocation: AllocationFile) -> None:
        _write(self._allocation_file(allocation.id), json.dumps(asdict(allocation)))

    def allocation(self, id: str) -> AllocationFile | None:
        return _read(self._allocation_file(id), AllocationFile)

    def allocations(self) -> list[AllocationFile]:
        ids = sorted(path.stem for path in (self.root / "allocations").glob("*.json"))
        return [found for id in ids if (found := self.allocation(id)) is not None]

    def other_allocations(self, id: str) -> list[AllocationFile]:
        """The other allocations that a process manages. Removes the files of the rest."""
        found = []
        for other in self.allocations():
            if other.id == id:
                continue
            if self.is_managed(other.id):
                found.append(other)
            else:
                self.remove_allocation(other.id)
        return found

    def lock_file(self, id: str) -> Path:
        return self.root / "allocations" / f"{id}.lock"

    def is_managed(self, id: str) -> bool:
        """Whether a process holds the allocation's lock."""
        try:
            handle = os.open(self.lock_file(id), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return not try_lock(handle)
        finally:
            os.close(handle)

    def remove_allocation(self, id: str) -> None:
        self._allocation_file(id).unlink(missing_ok=True)

    def _allocation_file(self, id: str) -> Path:
        return self.root / "allocations" / f"{id}.json"


def _read(path: Path, kind: type[_File]) -> _File | None:
    """The content of a file; None if it does not exist or is invalid."""
    try:
        return kind(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    temporary.write_text(text)
    temporary.chmod(0o600)
    temporary.replace(path)
