"""Slots on this machine: an ones-exec for every job, and one thread that talks to all of them.

Below the root, `live/JOB/NODE` are run directories; a job that was forgotten moves to
`ended/JOB`, where its output stays.
"""

from __future__ import annotations

import json
import selectors
import shutil
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import quote, unquote

from ones.errors import WorldError
from ones.exec import Chunk, Exit, Spec
from ones.launchers import run_dirs
from ones.launchers.api import Exited, Launch, Listener, Process, Slot, SlotUsed, Started
from ones.launchers.devices import cpu_slots, gpu_slots, threads_per_slot
from ones.launchers.keeper import Keeper, Phase, on_disk

IDLE_SECONDS = 60.0
#: how often it is looked who else uses the GPUs
LOOK_SECONDS = 10.0
#: in place of a name, of a GPU that the driver does not know any more
GONE = "nobody: the driver does not find it"
RETRY_SECONDS = 0.5
#: variables that limit the threads of a library, unless the user has set them
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def local_slots(node: str, root: Path, cpus: int | None) -> list[Slot]:
    """So many CPU slots; or, with None, the GPUs of this machine; `used_by` says who else uses one.

    A GPU keeps its number while jobs run, whatever the driver says of others."""
    if cpus is not None:
        return cpu_slots(node, cpus)
    found = {slot.device: slot for slot in look_at_gpus(node, root)}
    order = _kept_order(root) if any((root / "live").glob("*/*")) else None
    if order is None:
        order = list(found)
        (root / "slots.json").write_text(json.dumps(order))
    return [
        replace(found[device], index=i)
        if device in found
        else Slot(node=node, index=i, kind="gpu", device=device, used_by=(GONE,))
        for i, device in enumerate(order)
    ]


def look_at_gpus(node: str, root: Path) -> list[Slot]:
    """As the driver numbers them, with those who use them and are not below this root."""
    mark = str(root).encode()

    def is_ours(pid: int) -> bool:
        with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            return b"ONES_JOB_DIR=" + mark in file.read()
        return False

    return gpu_slots(node, is_ours)


def _kept_order(root: Path) -> list[str] | None:
    try:
        return list(json.loads((root / "slots.json").read_text()))
    except (OSError, ValueError):
        return None


class LocalLauncher:
    """With a `lease`, a file that somebody has to renew, workers run as long as it says. `look`
    gives the devices as they are now: who else uses one is told when it changes. `only` names the
    node that is ours where several share the root."""

    def __init__(
        self,
        root: Path,
        slots: Sequence[Slot],
        *,
        look: Callable[[], list[Slot]] | None = None,
        look_seconds: float = LOOK_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
        lease: Path | None = None,
        only: str = "*",
    ) -> None:
        self._live, self._ended = root / "live", root / "ended"
        self._slots = {slot.id: slot for slot in slots}
        self._threads = threads_per_slot(len(slots))
        self._idle, self._lease, self._only = idle_seconds, lease, only
        self._look, self._look_seconds = look, look_seconds
        self._over = threading.Event()
        self._keepers: dict[Path, Keeper] = {}
        self._processes: dict[str, Process] = {}
        self._lock = threading.Lock()  # of `_processes`
        self._listener: Listener = lambda event: None
        self._todo: deque[Callable[[], None]] = deque()
        self._selector = selectors.DefaultSelector()
        self._registered: dict[Keeper, tuple[int, int]] = {}  # its file and events
        self._wake_end, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._wake_end.setblocking(False)
        self._selector.register(self._wake_end, selectors.EVENT_READ, None)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="ones-launcher", daemon=True)

    # what callers see

    def open(self, listener: Listener) -> None:
        for directory in (self._live, self._ended):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for run_dir in sorted(self._live.glob(f"*/{self._only}")):
            self._keeper(run_dir, unquote(run_dir.parent.name)).find()
        self._listener = listener
        self._thread.start()
        if self._look is not None:
            threading.Thread(target=self._watch, name="ones-gpus", daemon=True).start()

    def slots(self) -> list[Slot]:
        return list(self._slots.values())

    def reached_at(self, host: str) -> None:
        """Where workers that start from now on are reached by those on other nodes."""
        for id, slot in list(self._slots.items()):
            self._slots[id] = replace(slot, host=host)

    def _watch(self) -> None:
        assert self._look is not None
        while not self._over.wait(self._look_seconds):
            try:
                found = {slot.device: slot.used_by for slot in self._look()}
            except (WorldError, OSError):
                continue  # a driver that does not answer says nothing of strangers
            for id, known in list(self._slots.items()):
                now = found.get(known.device, (GONE,))
                if now != known.used_by:
                    self._slots[id] = slot = replace(known, used_by=now)
                    self._later(partial(self._tell_of, slot))

    def _tell_of(self, slot: Slot) -> None:
        self._listener(SlotUsed(slot))

    def launch(self, launch: Launch) -> None:
        with self._lock:
            if launch.id in self._processes:
                return
            self._processes[launch.id] = Process(id=launch.id, job=launch.job, slots=launch.slots)
        self._later(lambda: self._launch(launch))

    def prepare(self, launch: Launch) -> None:
        self._later(lambda: self._prepare(launch))

    def stop(self, id: str, grace_seconds: float) -> None:
        self._later(lambda: self._stop(id, grace_seconds))

    def running(self) -> dict[str, Process]:
        with self._lock:
            return dict(self._processes)

    def history(self, job: str) -> list[Process]:
        return run_dirs.history(self._live.parent, job)

    def logs(self, job: str, id: str, offset: int, limit: int) -> Chunk:
        return run_dirs.output(self._live.parent, job, id, offset, limit)

    def forget(self, job: str) -> None:
        self._later(lambda: self._forget(job))

    def close(self, *, kill: bool) -> None:
        self._over.set()
        if kill:
            self._later(self._close_all)
        self._later(self._end)
        if self._thread.is_alive():
            self._thread.join()

    # in the thread

    def _later(self, what: Callable[[], None]) -> None:
        self._todo.append(what)
        with suppress(BlockingIOError):
            self._wake.send(b"x")

    def _run(self) -> None:
        while not (self._closing and not any(k.closing for k in self._keepers.values())):
            self._register_all()
            for key, events in self._selector.select(self._patience()):
                if key.data is None:
                    with suppress(BlockingIOError):
                        self._wake_end.recv(4096)
                    continue
                if events & selectors.EVENT_WRITE:
                    key.data.flush()
                if events & selectors.EVENT_READ:
                    self._unregister(key.data)  # its file may be another one afterwards
                    self._guarded(key.data, key.data.serve)
            while self._todo:
                self._todo.popleft()()
            now = time.monotonic()
            for keeper in list(self._keepers.values()):
                if keeper.retry_at is not None and keeper.retry_at <= now:
                    self._guarded(keeper, keeper.retry)
                if keeper.closing and keeper.phase is Phase.ABSENT and not keeper.open:
                    self._drop(keeper)
        for keeper in self._keepers.values():
            self._unregister(keeper)
            keeper.let_go()
        self._selector.close()
        self._wake.close()
        self._wake_end.close()

    def _guarded(self, keeper: Keeper, what: Callable[[], None]) -> None:
        """The world may refuse anything at any time; then we ask again."""
        try:
            what()
        except OSError:
            keeper.retry_at = time.monotonic() + RETRY_SECONDS

    def _patience(self) -> float | None:
        times = [k.retry_at for k in self._keepers.values() if k.retry_at is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _register_all(self) -> None:
        for keeper in self._keepers.values():
            if not keeper.listens:
                self._unregister(keeper)
                continue
            events = selectors.EVENT_READ
            if keeper.wants_to_write:
                events |= selectors.EVENT_WRITE
            wanted = (keeper.fileno(), events)
            if self._registered.get(keeper) != wanted:
                self._unregister(keeper)
                self._selector.register(wanted[0], events, keeper)
                self._registered[keeper] = wanted

    def _unregister(self, keeper: Keeper) -> None:
        registered = self._registered.pop(keeper, None)
        if registered is not None:
            self._selector.unregister(registered[0])

    def _keeper(self, run_dir: Path, job: str) -> Keeper:
        keeper = self._keepers.get(run_dir)
        if keeper is None:
            run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            for spec, pid, _, exit in on_disk(run_dir):
                with self._lock:
                    self._processes[spec.id] = Process(
                        id=spec.id, job=job, slots=spec.slots, pid=pid, exit=exit
                    )
            keeper = Keeper(run_dir, self._news, self._idle, self._lease)
            self._keepers[run_dir] = keeper
        return keeper

    def _news(self, id: str, pid: int | None, exit: Exit | None) -> None:
        with self._lock:
            known = self._processes[id]
            process = Process(
                id=id, job=known.job, slots=known.slots, pid=pid or known.pid, exit=exit
            )
            if process == known:
                return
            self._processes[id] = process
        if exit is not None:
            self._listener(Exited(id, exit))
        else:
            assert pid is not None
            self._listener(Started(id, pid))

    def _launch(self, launch: Launch) -> None:
        try:
            self._send(launch)
        except OSError as problem:  # a full disk, too many processes
            why = f"{problem.filename}: {problem.strerror}" if problem.filename else str(problem)
            self._news(
                launch.id,
                None,
                Exit(code=None, at=time.time(), cause="not-started", message=why.lower()),
            )

    def _prepare(self, launch: Launch) -> None:
        with suppress(OSError):  # then the launch itself will say what is wrong
            run_dir, spec = self._spec(launch)
            self._keeper(run_dir, launch.job).prepare(spec)

    def _send(self, launch: Launch) -> None:
        run_dir, spec = self._spec(launch)
        self._keeper(run_dir, launch.job).launch(spec)

    def _spec(self, launch: Launch) -> tuple[Path, Spec]:
        missing = [id for id in launch.slots if id not in self._slots]
        if missing:
            raise OSError(f"slot {missing[0]} is not here")
        slots = [self._slots[id] for id in launch.slots]
        run_dir = self._live / quote(launch.job, safe="") / slots[0].node
        spec = Spec(
            id=launch.id,
            argv=launch.argv,
            cwd=launch.cwd,
            env=self._environment(launch, slots, run_dir),
            grace_seconds=launch.grace_seconds,
            zygote=launch.zygote,
            slots=launch.slots,
        )
        return run_dir, spec

    def _environment(self, launch: Launch, slots: list[Slot], run_dir: Path) -> dict[str, str]:
        threads = str(self._threads * len(slots))
        return {
            **dict.fromkeys(THREADS, threads),
            **launch.env,
            "PYTHONUNBUFFERED": "1",
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": ",".join(slot.device for slot in slots if slot.device),
            "ONES_RUN_DIR": str(run_dir / launch.id),
            "ONES_JOB_DIR": str(run_dir),
            "ONES_HOST": slots[0].host,
        }

    def _stop(self, id: str, grace: float) -> None:
        with self._lock:
            process = self._processes.get(id)
        if process is not None:
            for run_dir in self._run_dirs(process.job):
                self._keepers[run_dir].stop(id, grace)

    def _run_dirs(self, job: str) -> list[Path]:
        base = self._live / quote(job, safe="")
        return [run_dir for run_dir in self._keepers if run_dir.parent == base]

    def _forget(self, job: str) -> None:
        for run_dir in self._run_dirs(job):
            self._keepers[run_dir].close(grace=0.0)

    def _drop(self, keeper: Keeper) -> None:
        """Its ones-exec is gone: the directory goes to the ended ones."""
        self._unregister(keeper)
        del self._keepers[keeper.run_dir]
        if self._closing:
            return  # everything was stopped, nothing was forgotten
        job = keeper.run_dir.parent
        with self._lock:
            for id in [p.id for p in self._processes.values() if p.job == unquote(job.name)]:
                del self._processes[id]
        target = self._ended / job.name
        with suppress(OSError):  # a full disk: it will be found again at the next start
            target.mkdir(mode=0o700, exist_ok=True)
            shutil.rmtree(target / keeper.run_dir.name, ignore_errors=True)
            keeper.run_dir.rename(target / keeper.run_dir.name)
            job.rmdir()

    def _close_all(self) -> None:
        for keeper in self._keepers.values():
            keeper.close(grace=5.0)

    def _end(self) -> None:
        self._closing = True
