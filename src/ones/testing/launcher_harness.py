"""A launcher under test, with real processes."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from ones.exec import Exit
from ones.launchers import Exited, Launch, Launcher, LauncherEvent, Started
from ones.testing.processes import wait_for

ENV = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}


@dataclass
class LauncherHarness:
    """A launcher and its events. `make` creates it below the root, also when it is reopened."""

    root: Path
    make: Callable[[Path], Launcher]
    launcher: Launcher = field(init=False)
    events: list[LauncherEvent] = field(default_factory=list)
    user: str = ""  # Unix user of the jobs; empty: this process's
    files: Path = field(init=False)  # where run directories are: the root, or the user's directory

    def __post_init__(self) -> None:
        self.files = self.root

    def open(self) -> None:
        self.launcher = self.make(self.root)
        self.launcher.open(self.events.append)

    def reopen(self) -> None:
        """Restarts the launcher as a new controller does; the workers keep running."""
        self.launcher.close(kill=False)
        self.events.clear()
        self.open()

    def run(
        self, command: str, id: str = "1-a", *, job: str = "job", grace: float = 5.0, slot: int = 0
    ) -> Launch:
        launch = Launch(
            id=id,
            job=job,
            slots=(self.launcher.slots()[slot].id,),
            argv=("sh", "-c", command),
            cwd=str(self.root),
            env=ENV,
            grace_seconds=grace,
            user=self.user,
        )
        self.launcher.launch(launch)
        return launch

    def python(self, source: str, id: str = "1-a", *, grace: float = 5.0) -> None:
        script = self.root / f"{id}.py"
        script.write_text(textwrap.dedent(source))
        python = "/usr/bin/python3" if self.user else sys.executable
        self.run(f"exec {python} {script}", id, grace=grace)

    def started(self, id: str = "1-a") -> int:
        found = [e.pid for e in self.events if isinstance(e, Started) and e.id == id]
        return found[0] if found else 0

    def wait_started(self, id: str = "1-a") -> int:
        return wait_for(lambda: self.started(id), f"{id} did not start: {self.events}")

    def exits(self, id: str = "1-a") -> list[Exit]:
        return [e.exit for e in self.events if isinstance(e, Exited) and e.id == id]

    def wait_exit(self, id: str = "1-a") -> Exit:
        return wait_for(lambda: self.exits(id), f"{id} did not exit: {self.events}")[0]

    def wait_found_dead(self, id: str = "1-a") -> Exit:
        """Waits for an exit that a new controller finds by `running`, not by an event."""
        wait_for(lambda: self.launcher.running()[id].exit)
        exit = self.launcher.running()[id].exit
        assert exit is not None
        return exit

    def output(self, id: str = "1-a", job: str = "job") -> bytes:
        return self.launcher.logs(job, id, 0, 1 << 20).data

    def wait_output(self, text: bytes, id: str = "1-a") -> None:
        wait_for(lambda: text in self.output(id), f"no {text!r} in the output of {id}")

    def supervisors(self) -> list[int]:
        """Process ids of every ones-exec, the owners of the workers on a node."""
        return [int(lock.read_text()) for lock in self.files.glob("**/live/*/*/lock")]


def start_controller(
    contract: type, root: Path, command: str, user: str = ""
) -> subprocess.Popen[bytes]:
    """Starts a process that opens the launcher, launches one command, and prints the events."""
    return subprocess.Popen(
        [sys.executable, "-m", __name__, inspect.getfile(contract), contract.__qualname__,
         str(root), command, user],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip


def _control(file: str, name: str, root: str, command: str, user: str) -> None:
    spec = spec_from_file_location("contract_under_test", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    launcher: Launcher = getattr(module, name)().make(Path(root))
    launcher.open(_show)
    slots, argv = (launcher.slots()[0].id,), ("sh", "-c", command)
    launcher.launch(
        Launch(id="1-a", job="job", slots=slots, argv=argv, cwd="/", env=ENV, user=user)
    )
    time.sleep(1000)


def _show(event: LauncherEvent) -> None:
    sys.stdout.write(f"{event}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _control(*sys.argv[1:])
