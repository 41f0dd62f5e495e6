"""A simulated training process that speaks worker protocol 1 as `ones.train` does.

Reports are numbered and kept until they are acknowledged; orders come by long-poll. Training
continues while the controller is down. After 409 the process exits.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from ones.exec import Exit
from ones.lab.faults.context import FaultContext
from ones.lab.faults.job_spec import JobSpec
from ones.lab.faults.launcher import SimulatedLauncher
from ones.lab.faults.network import CLIENT_SECONDS, SimulatedNetwork
from ones.launchers import Launch
from ones.wire import CodecError, Orders, Reports, pack, unpack
from ones.wire.environment import WorkerEnvironment
from ones.wire.messages import (
    CheckpointAndLeave,
    End,
    Epoch,
    Joined,
    Leaving,
    Order,
    Report,
    Steps,
    Switch,
)

WAIT_SECONDS = 20.0  # of a long-poll
FLUSH_SECONDS = 10.0  # before it exits with unacknowledged reports
TERMINATED, LEFT_OUT = 143, 75  # exit codes; see `ones.train.worker_context`
GOOD_ENDS = ("converged", "finished")


class WorkerCallbacks(Protocol):
    """Callbacks from a worker to its job. See `SimulatedJob`."""

    spec: JobSpec
    unreported_epochs: int
    completed: int

    def seconds_to_join(self) -> float | None: ...
    def fails_before_joining(self) -> bool: ...
    def joined(self, worker: SimulatedWorker) -> None: ...
    def count_report(self, report: Report) -> None: ...
    def gone(self, worker: SimulatedWorker, unreported_epochs: int) -> None: ...
    def cut(self, worker: SimulatedWorker) -> None: ...
    def ordered(self, worker: SimulatedWorker) -> None: ...
    def save_and_leave(self, worker: SimulatedWorker) -> None: ...
    def end(self, worker: SimulatedWorker, *, good: bool) -> None: ...
    def terminated(self, worker: SimulatedWorker) -> None: ...


class SimulatedWorker:
    def __init__(
        self,
        context: FaultContext,
        network: SimulatedNetwork,
        launcher: SimulatedLauncher,
        job: WorkerCallbacks,
        launch: Launch,
    ) -> None:
        environment = WorkerEnvironment.from_env(launch.env)
        assert environment is not None
        self._context, self._network, self._launcher = context, network, launcher
        self._environment, self._id = environment, launch.id
        self.job = job
        self.name = environment.worker
        self.token = environment.token
        self.generation = (environment.plan, environment.incarnation)
        self.alive = True
        self.joined = False
        self.is_cut = False
        self.is_expelled = False  # removed from its job; the other workers continue
        self.was_first = False
        self.is_leaving = False  # does not train any more
        self.order: Switch | None = None  # received and not carried out
        self._queue: deque[tuple[int, tuple[int, int], Report]] = deque()
        self._next, self._seen = 1, 0
        self._reporting = False
        self._pause = {"reports": 0.1, "orders": 0.1}
        self._exit: tuple[int, str] = (0, "exited")

    @property
    def node(self) -> str:
        return self.name.rpartition("/")[0]

    @property
    def unreported_epochs(self) -> int:
        """Number of completed epochs without an acknowledged report."""
        return sum(isinstance(report, Epoch) for _, _, report in self._queue)

    # process

    def start(self) -> None:
        seconds = self.job.seconds_to_join()
        if seconds is not None:
            self._context.after(seconds, self._join)

    def _join(self) -> None:
        if not self.alive or self.is_leaving:
            return
        if self.job.fails_before_joining():
            self.exit(1)
            return
        spec = self.job.spec
        self.joined = True
        self.send(
            Joined(
                dataset_size=spec.dataset_size,
                base_batch=spec.base_batch,
                optimizer="sgd",
                parameter_bytes=1 << 20,
                max_local_batch=spec.max_local_batch,
            )
        )
        self.job.joined(self)
        self._listen()

    def terminate(self, grace: float) -> None:
        if grace <= 0.0:
            self._context.after(0.02, self._killed)
            return
        self._exit = (0 if self.is_leaving else TERMINATED, "stopped")
        self._context.after(self._context.rng.uniform(0.02, 1.0), self._terminated)
        self._context.after(grace, self._killed)

    def _terminated(self) -> None:
        if self.alive and not self.is_leaving:
            if not self.joined:
                self.exit(TERMINATED, "stopped")
            else:
                self.job.terminated(self)

    def _killed(self) -> None:
        if self.alive:
            self._gone()
            at = self._context.now
            self._launcher.exited(self._id, Exit(code=None, signal=9, at=at, cause="stopped"))

    def kill(self) -> None:
        if self.alive:
            self._gone()

    def die(self) -> None:
        """The process is killed from outside."""
        if self.alive:
            self._gone()
            at = self._context.now
            self._launcher.exited(self._id, Exit(code=None, signal=9, at=at, cause="exited"))

    def exit(self, code: int, cause: str = "exited") -> None:
        if self.alive:
            self._gone()
            at = self._context.now
            self._launcher.exited(self._id, Exit(code=code, at=at, cause=cause))

    def _gone(self) -> None:
        self.alive = False
        self.job.gone(self, self.unreported_epochs)

    def cut(self, is_cut: bool) -> None:
        self.is_cut = is_cut
        if not is_cut and self.is_expelled:
            self.exit(LEFT_OUT)
        else:
            self.job.cut(self)

    def leave(self, *, done: bool) -> None:
        """Reports that it leaves, waits a short time for acknowledgements, and exits."""
        if self.alive and not self.is_leaving:
            self.send(Leaving(done))
            self.is_leaving = True
            self._context.after(FLUSH_SECONDS, lambda: self.exit(*self._exit))

    # reports

    def send(self, report: Report) -> None:
        if not self.alive or self.is_leaving:
            return
        self.job.count_report(report)
        if len(self._queue) > 1 and isinstance(report, Steps):
            number, _, last = self._queue[-1]
            if isinstance(last, Steps):  # counts since the start of the epoch replace one another
                self._queue[-1] = (number, self.generation, report)
                return
        self._queue.append((self._next, self.generation, report))
        self._next += 1
        self._report()

    def _report(self) -> None:
        if self._reporting or not self._queue or not self.alive:
            return
        first, generation, _ = self._queue[0]
        batch: list[Report] = []
        for _, other, report in self._queue:
            if other != generation:
                break
            batch.append(report)
        self._reporting = True
        self._exchange(generation, first, tuple(batch), "reports")

    def _listen(self) -> None:
        if self.alive:
            self._exchange(self.generation, 0, (), "orders")

    def _exchange(
        self, generation: tuple[int, int], first: int, reports: tuple[Report, ...], line: str
    ) -> None:
        message = Reports(
            job=self._environment.job,
            worker=self.name,
            plan=generation[0],
            incarnation=generation[1],
            first=first,
            reports=reports,
            seen=self._seen,
        )
        if self.is_cut:
            self._context.after(CLIENT_SECONDS / 4, lambda: self._answered(line, None, b""))
            return
        wait = WAIT_SECONDS if line == "orders" else 0.0
        self._network.request(
            pack(message),
            self._environment.token,
            wait,
            lambda status, body: self._answered(line, status, body),
        )

    def _answered(self, line: str, status: int | None, body: bytes) -> None:
        if not self.alive:
            return
        if status == 409:
            self._context.note(f"{self._id} is not a member of its job any more")
            self.exit(LEFT_OUT)
            return
        try:
            orders = unpack(body) if status == 200 and not self.is_cut else None
        except CodecError as problem:
            self._context.violation(f"the controller's answer is not valid: {problem}")
            orders = None
        if line == "reports":
            self._reporting = False
        retry = self._report if line == "reports" else self._listen
        if not isinstance(orders, Orders):
            pause = self._pause[line]
            self._pause[line] = min(2 * pause, 5.0)
            self._context.after(pause, retry)
            return
        self._pause[line] = 0.1
        while self._queue and self._queue[0][0] <= orders.acknowledged:
            self._queue.popleft()
        if orders.order is not None and orders.order.plan > self._seen:
            self._seen = orders.order.plan
            self._obey(orders.order)
        if self.is_leaving and not self._queue:
            self._context.after(0.05, lambda: self.exit(*self._exit))
        elif line == "orders":
            self._context.after(0.01, retry)
        else:
            retry()

    def _obey(self, order: Order) -> None:
        if self.is_leaving:
            return
        self._context.note(f"{self._id} receives {type(order).__name__} {order.plan}")
        if isinstance(order, Switch):
            self.order = order
            self.job.ordered(self)
        elif isinstance(order, CheckpointAndLeave):
            self.job.save_and_leave(self)
        elif isinstance(order, End):
            self.job.end(self, good=order.reason in GOOD_ENDS)
