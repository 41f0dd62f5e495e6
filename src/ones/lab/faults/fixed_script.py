"""A simulated script that never joins: it runs for some time and exits."""

from __future__ import annotations

from ones.exec import Exit
from ones.lab.faults.context import FaultContext
from ones.lab.faults.launcher import SimulatedLauncher
from ones.lab.faults.worker import WorkerCallbacks
from ones.launchers import Launch


class FixedScript:
    """A process that never joins: runs for some time and exits."""

    def __init__(
        self,
        context: FaultContext,
        launcher: SimulatedLauncher,
        job: WorkerCallbacks,
        launch: Launch,
    ) -> None:
        self._context, self._launcher, self._job = context, launcher, job
        self._id = launch.id
        self.alive = True

    def start(self) -> None:
        code = 1 if self._job.fails_before_joining() else 0
        self._context.after(self._job.spec.fixed_seconds, lambda: self._exit(code, "exited"))

    def _exit(self, code: int | None, cause: str, signal: int | None = None) -> None:
        if self.alive:
            self.alive = False
            if code == 0 and cause == "exited":
                self._job.completed += 1
                self._job.unreported_epochs += self._job.spec.epochs  # it reports nothing
            exit = Exit(code=code, signal=signal, at=self._context.now, cause=cause)
            self._launcher.exited(self._id, exit)

    def terminate(self, grace: float) -> None:
        self._context.after(0.02, lambda: self._exit(None, "stopped", 15 if grace > 0 else 9))

    def kill(self) -> None:
        self.alive = False

    def die(self) -> None:
        self._exit(None, "exited", 9)

    def cut(self, is_cut: bool) -> None:
        pass
