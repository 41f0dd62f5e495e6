"""What workers use of their slots: from given readings, from a stand-in for NVML, and for real."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ones.exec import Launch
from ones.exec.processes import ProcessUsage, usage_of_all
from ones.launchers import LaunchedProcess, LauncherEvent, Sampled, Slot
from ones.launchers.devices import cpu_slots
from ones.launchers.local import LocalLauncher
from ones.launchers.sampler import NodeSampler
from ones.wire import CodecError
from ones.wire.samples import OWN_STEPS, OwnSteps, SlotSample, plain_samples, samples_of
from tests.launchers.test_devices import Driver
from tests.processes import wait_for

MB = 1 << 20
SLOTS = {slot.id: slot for slot in cpu_slots("n0", 4)}


class Machine:
    """A table of processes and a clock, which tests set."""

    def __init__(self) -> None:
        self.now = 0.0
        self.processes: dict[int, ProcessUsage] = {}
        self.sampler = NodeSampler(2, usage=self.processes.values, clock=lambda: self.now)

    def set(self, pid: int, cpu: float, *, parent: int = 1, memory: int = 0, born: int = 5) -> None:
        self.processes[pid] = ProcessUsage(pid, born, parent, cpu, memory * MB)

    def sample(self, *processes: LaunchedProcess) -> dict[str, SlotSample]:
        return {s.slot: s for s in self.sampler.sample(processes, SLOTS)}


def worker(pid: int, *slots: str) -> LaunchedProcess:
    return LaunchedProcess(id=f"j~1~{slots[0]}", job="j", slots=slots, pid=pid)


def test_a_busy_and_an_idle_worker_are_told_apart() -> None:
    machine, busy, idle = Machine(), worker(10, "n0/0"), worker(20, "n0/1")
    machine.set(10, 100.0, memory=300)
    machine.set(20, 7.0, memory=20)
    first = machine.sample(busy, idle)
    assert [(s.utilisation, s.cpus) for s in first.values()] == [(None, None)] * 2

    machine.now = 10.0
    machine.set(10, 115.0, memory=300)
    found = machine.sample(busy, idle)
    assert (found["n0/0"].utilisation, found["n0/0"].cpus) == (0.75, 1.5)
    assert (found["n0/1"].utilisation, found["n0/1"].cpus) == (0.0, 0.0)
    assert (found["n0/0"].memory_mb, found["n0/1"].memory_mb) == (300.0, 20.0)


def test_children_count_for_their_worker_and_a_reused_pid_does_not() -> None:
    machine, one = Machine(), worker(10, "n0/0")
    machine.set(10, 50.0, memory=100)
    machine.set(11, 90.0, parent=10, memory=10)
    machine.set(99, 500.0)  # of another user
    machine.sample(one)
    machine.now = 10.0
    machine.set(10, 51.0, memory=100)
    machine.set(11, 2.0, parent=10, memory=10, born=8)  # another child with the same pid
    machine.set(12, 4.0, parent=11, memory=1)
    machine.set(99, 600.0)
    found = machine.sample(one)["n0/0"]
    assert found.cpus == pytest.approx(0.7)
    assert found.memory_mb == 111.0


def test_a_process_on_several_slots_shares_what_it_uses() -> None:
    machine, one = Machine(), worker(10, "n0/0", "n0/1")
    machine.set(10, 0.0, memory=100)
    machine.sample(one)
    machine.now = 10.0
    machine.set(10, 1000.0, memory=100)  # more than its share: as if others left theirs
    found = machine.sample(one)
    assert [(s.utilisation, s.memory_mb) for s in found.values()] == [(1.0, 50.0)] * 2


def test_nothing_is_said_of_workers_that_are_gone_or_not_here() -> None:
    machine = Machine()
    gone = LaunchedProcess(id="a", job="j", slots=("n0/0",))
    assert machine.sample(gone) == {}
    assert machine.sample(worker(10, "n9/0")) == {}
    assert machine.sample(worker(10, "n0/0"))["n0/0"].memory_mb is None  # ended by now


class BusyDriver(Driver):
    """As `Driver`; the second GPU is a part of one (MIG), which knows its memory only."""

    def nvmlDeviceGetHandleByUUID(self, device: str) -> str:  # noqa: N802
        if device not in ("GPU-0", "MIG-1"):
            raise self.NVMLError("not found")
        return device

    def nvmlDeviceGetUtilizationRates(self, device: str) -> object:  # noqa: N802
        if device == "MIG-1":
            raise self.NVMLError("not supported")
        return SimpleNamespace(gpu=87, memory=40)

    def nvmlDeviceGetMemoryInfo(self, device: object) -> object:  # noqa: N802
        return SimpleNamespace(total=16 << 30, used=3 << 30)

    def nvmlDeviceGetPowerUsage(self, device: str) -> int:  # noqa: N802
        if device == "MIG-1":
            raise self.NVMLError("not supported")
        return 251_300


@pytest.mark.parametrize("is_driver_there", [True, False])
def test_gpus_are_read_from_the_driver(*, is_driver_there: bool) -> None:
    devices = ("GPU-0", "MIG-1", "GPU-9")
    slots = {f"n0/{i}": Slot(node="n0", index=i, device=d) for i, d in enumerate(devices)}
    driver = BusyDriver(present=is_driver_there)
    sampler = NodeSampler(1, usage=list, nvml=driver)
    found = sampler.sample([worker(10, *slots)], slots)
    values = [(s.utilisation, s.memory_mb, s.power_watts) for s in found]
    if not is_driver_there:
        assert values == [(None, None, None)] * 3
        return
    assert values == [(0.87, 3072.0, 251.3), (None, 3072.0, None), (None, None, None)]


def test_the_processes_of_this_machine_are_read() -> None:
    found = {usage.pid: usage for usage in usage_of_all()}[os.getpid()]
    assert found.parent == os.getppid()
    assert found.cpu_seconds > 0.0
    assert found.memory_bytes > 10 * MB


# bounds

BAD: list[Any] = [
    None,
    "x",
    [1],
    [{}],
    [{"launch": "a", "slot": "n0"}],
    [{"launch": "a", "slot": "n0/0", "utilisation": 1.5}],
    [{"launch": "a", "slot": "n0/0", "utilisation": float("nan")}],
    [{"launch": "a", "slot": "n0/0", "memory_mb": -1}],
    [{"launch": "a", "slot": "n0/0", "power_watts": 1e300}],
    [{"launch": "a", "slot": "n0/0", "cpus": "many"}],
    [{"launch": "a", "slot": "n0/0", "own_steps": {"seconds": 0.0, "samples": 1}}],
    [{"launch": "a", "slot": "n0/0", "more": 1}],
    [{"launch": "a" * 301, "slot": "n0/0"}],
    [{"launch": "a", "slot": "n0/0"}] * 4097,
]


@pytest.mark.parametrize("plain", BAD)
def test_samples_out_of_bounds_are_refused(plain: object) -> None:
    with pytest.raises(CodecError):
        samples_of(plain)


ODD = st.one_of(st.none(), st.floats(), st.integers(), st.text(max_size=9))
FIELDS = ("launch", "slot", "utilisation", "cpus", "own_steps")


@settings(max_examples=40)
@given(st.lists(st.dictionaries(st.sampled_from(FIELDS), ODD), max_size=3) | ODD)
def test_no_message_raises_anything_else(plain: object) -> None:
    try:
        samples = samples_of(plain)
    except CodecError:
        return
    assert samples_of(plain_samples(samples)) == samples


# with real processes


def launch(id: str, slot: str, script: str) -> Launch:
    argv = (sys.executable, "-c", script)
    return Launch(
        id=id, job=id.partition("~")[0], slots=(slot,), argv=argv, cwd="/", env=dict(os.environ)
    )


def test_a_launcher_samples_its_workers(tmp_path: Path) -> None:
    launcher = LocalLauncher(tmp_path, cpu_slots("n0", 2))
    launcher.sample_seconds = 0.1
    events: list[LauncherEvent] = []
    launcher.open(events.append)

    def latest() -> dict[str, SlotSample]:
        samples = [s for e in list(events) if isinstance(e, Sampled) for s in e.samples]
        return {sample.launch: sample for sample in samples}

    def values(id: str) -> list[float | None]:
        samples = [s for e in list(events) if isinstance(e, Sampled) for s in e.samples]
        return [sample.cpus for sample in samples if sample.launch == id]

    says = json.dumps({"seconds": 0.25, "samples": 32.0})
    speaks = f"import os; open(os.environ['ONES_RUN_DIR'] + '/{OWN_STEPS}', 'w').write('{says}')"
    lies = f"import os; os.symlink('/etc/passwd', os.environ['ONES_RUN_DIR'] + '/{OWN_STEPS}')"
    try:
        launcher.launch(launch("a~1~n0.0", "n0/0", f"{speaks}\nwhile True: pass"))
        launcher.launch(launch("b~1~n0.1", "n0/1", f"{lies}\nimport time; time.sleep(1000)"))
        wait_for(lambda: any(cpus for cpus in values("a~1~n0.0")), "the busy worker is idle")
        # the interpreter starts with some work; then nothing is left to do
        wait_for(lambda: values("b~1~n0.1")[-1:] == [0.0], "the idle worker is busy")
        steps = wait_for(lambda: latest()["a~1~n0.0"].own_steps)
        assert steps == OwnSteps(seconds=0.25, samples=32.0)
        assert latest()["b~1~n0.1"].own_steps is None
        assert (latest()["b~1~n0.1"].memory_mb or 0.0) > 1.0
    finally:
        launcher.close(kill=True)
