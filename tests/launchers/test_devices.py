"""GPUs as NVML tells them. There is none here, so a stand-in speaks NVML's own calls."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from ones.errors import WorldError
from ones.launchers import LauncherEvent, Slot, SlotUsed
from ones.launchers.devices import (
    cpu_slots,
    free_gpu_slots,
    gpu_slots,
    granted_gpu_slots,
    local_slots,
    threads_per_slot,
)
from ones.launchers.local import LocalLauncher
from ones.launchers.topology import groups
from tests.processes import wait_for


class Driver:
    """Two GPUs; another process uses the second one. With `islands`, a GPU for each, and NVLink
    between those with the same number; with `sockets`, where each is."""

    NVML_P2P_CAPS_INDEX_NVLINK, NVML_P2P_STATUS_OK, NVML_TOPOLOGY_SYSTEM = 2, 0, 50

    class NVMLError(Exception):
        pass

    def __init__(
        self, *, present: bool = True, broken: bool = False, islands: str = "", sockets: str = ""
    ) -> None:
        self.present, self.broken = present, broken
        self.islands, self.sockets = islands, sockets

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.present:
            raise self.NVMLError("driver not loaded")

    def nvmlShutdown(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        if self.broken:
            raise self.NVMLError("unknown error")
        return len(self.islands) or 2

    def nvmlDeviceGetP2PStatus(self, one: int, other: int, index: int) -> int:  # noqa: N802
        assert index == self.NVML_P2P_CAPS_INDEX_NVLINK
        if not self.islands:
            raise self.NVMLError("not supported")
        return 0 if self.islands[one] == self.islands[other] else 5

    def nvmlDeviceGetTopologyCommonAncestor(self, one: int, other: int) -> int:  # noqa: N802
        if not self.sockets:
            raise self.NVMLError("not supported")
        return 30 if self.sockets[one] == self.sockets[other] else self.NVML_TOPOLOGY_SYSTEM

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetMigMode(self, device: object) -> list[int]:  # noqa: N802
        raise self.NVMLError("not supported")

    def nvmlDeviceGetComputeRunningProcesses(self, device: int) -> list[object]:  # noqa: N802
        return [SimpleNamespace(pid=os.getpid())] if device == 1 else []

    def nvmlDeviceGetName(self, device: int) -> bytes:  # noqa: N802
        return b"V100"

    def nvmlDeviceGetUUID(self, device: int) -> str:  # noqa: N802
        return f"GPU-{device}"

    def nvmlDeviceGetMemoryInfo(self, device: int) -> object:  # noqa: N802
        return SimpleNamespace(total=16 << 30)


class DividedDriver(Driver):
    """The first of two GPUs is divided into two parts, of seven possible ones."""

    NVML_DEVICE_MIG_ENABLE = 1

    def nvmlDeviceGetMigMode(self, device: object) -> list[int]:  # noqa: N802
        return [1 if device == 0 else 0, 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, device: object) -> int:  # noqa: N802
        assert device == 0
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: int, part: int) -> str:  # noqa: N802
        if part not in (0, 3):
            raise self.NVMLError("not found")
        return f"{device}/{part}"

    def nvmlDeviceGetUUID(self, device: object) -> str:  # noqa: N802
        return f"MIG-{device}" if isinstance(device, str) else f"GPU-{device}"

    def nvmlDeviceGetP2PStatus(self, one: object, other: object, index: int) -> int:  # noqa: N802
        raise self.NVMLError("not supported")


def test_the_parts_of_a_divided_gpu_are_devices_of_their_own() -> None:
    slots = gpu_slots("n0", lambda pid: False, DividedDriver())
    assert [slot.device for slot in slots] == ["MIG-0/0", "MIG-0/3", "GPU-1"]
    assert [slot.index for slot in slots] == [0, 1, 2]
    assert [bool(slot.used_by) for slot in slots] == [False, False, True]


def test_free_gpus_are_given_out_and_too_few_are_refused() -> None:
    assert [s.device for s in free_gpu_slots("n0", 2, nvml=DividedDriver())] == [
        "MIG-0/0", "MIG-0/3",
    ]  # fmt: skip
    with pytest.raises(WorldError, match=r"2 GPUs are wanted, 1 of 2 are free; in use: GPU 1 by"):
        free_gpu_slots("n0", 2, nvml=Driver())
    with pytest.raises(WorldError, match="no GPU was found"):
        free_gpu_slots("n0", 1, nvml=Driver(present=False))


def test_workers_may_share_a_gpu_if_they_are_told_to() -> None:
    slots = free_gpu_slots("n0", 2, may_share=True, nvml=Driver())
    assert [(slot.index, slot.device) for slot in slots] == [(0, "GPU-0"), (1, "GPU-0")]


def test_a_gpu_in_use_by_another_process_is_shown_with_its_user() -> None:
    free, used = gpu_slots("n0", lambda pid: False, Driver())
    assert (free.id, free.name, free.memory_mb, free.device) == ("n0/0", "V100", 16384, "GPU-0")
    assert free.used_by == ()
    (who,) = used.used_by
    assert f"pid {os.getpid()}" in who


def test_our_own_processes_are_no_strangers() -> None:
    assert not gpu_slots("n0", lambda pid: pid == os.getpid(), Driver())[1].used_by


def test_no_driver_means_no_gpus_and_a_broken_one_is_said() -> None:
    assert gpu_slots("n0", lambda pid: False, Driver(present=False)) == []
    with pytest.raises(WorldError, match="NVIDIA driver did not list its GPUs: unknown error"):
        gpu_slots("n0", lambda pid: False, Driver(broken=True))


def test_the_real_library_finds_none_here_or_some() -> None:
    assert all(slot.kind == "gpu" for slot in gpu_slots("n0", lambda pid: False))


def test_the_real_library_has_the_calls_and_numbers_that_groups_need() -> None:
    import pynvml

    for name in (
        "nvmlDeviceGetP2PStatus", "nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetMigMode",
        "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex",
        "nvmlDeviceGetHandleByUUID", "nvmlSystemGetDriverVersion",
    ):  # fmt: skip
        assert callable(getattr(pynvml, name))
    assert pynvml.NVML_DEVICE_MIG_ENABLE == DividedDriver.NVML_DEVICE_MIG_ENABLE
    for name in ("NVML_P2P_CAPS_INDEX_NVLINK", "NVML_P2P_STATUS_OK", "NVML_TOPOLOGY_SYSTEM"):
        assert getattr(pynvml, name) == getattr(Driver, name)


@pytest.mark.parametrize(
    ("islands", "sockets", "expected"),
    [
        ("aabb", "xxxx", "nvlink0 nvlink0 nvlink1 nvlink1"),
        ("abab", "xxyy", "nvlink0 nvlink1 nvlink0 nvlink1"),
        ("aaaa", "xxyy", "   "),  # a switch joins all
        ("abcd", "xxyy", "socket0 socket0 socket1 socket1"),
        ("abcd", "xxxx", "   "),
        ("aabc", "", "nvlink0 nvlink0 nvlink1 nvlink2"),
        ("", "", " "),  # an old driver
    ],
)
def test_gpus_that_are_close_have_a_group(islands: str, sockets: str, expected: str) -> None:
    slots = gpu_slots("n0", lambda pid: True, Driver(islands=islands, sockets=sockets))
    assert [slot.group for slot in slots] == expected.split(" ")


def test_a_mesh_that_lacks_some_links_is_no_group_but_its_sockets_are() -> None:
    def linked(a: int, b: int) -> bool:  # two squares, and one link between each pair of corners
        return a // 4 == b // 4 or abs(a - b) == 4

    found = groups(8, linked, lambda a, b: a // 4 == b // 4)
    assert found == ("socket0",) * 4 + ("socket1",) * 4
    # a chain: in any order, no part has all its members near one another
    assert groups(3, lambda a, b: abs(a - b) == 1, lambda a, b: True) == ("",) * 3


def test_all_workers_together_use_no_more_threads_than_there_are() -> None:
    cores = len(os.sched_getaffinity(0))
    assert threads_per_slot(1) == cores
    assert threads_per_slot(10 * cores) == 1
    assert [s.id for s in cpu_slots("n0", 2)] == ["n0/0", "n0/1"]


def found(*used: str, gone: str = "") -> list[Slot]:
    return [
        Slot(node="n0", index=i, kind="gpu", device=d, used_by=("x",) if d in used else ())
        for i, d in enumerate(("A", "B", "C"))
        if d != gone
    ]


def test_slots_keep_their_device_while_jobs_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = found("B")
    monkeypatch.setattr("ones.launchers.devices.gpu_slots", lambda node, is_ours: now)

    def shown() -> list[tuple[int, str, bool]]:
        return [(s.index, s.device, bool(s.used_by)) for s in local_slots("n0", tmp_path, None)]

    assert shown() == [(0, "A", False), (1, "B", True), (2, "C", False)]
    now = found("A", gone="B")
    (tmp_path / "live" / "job" / "n0").mkdir(parents=True)
    assert shown() == [(0, "A", True), (1, "B", True), (2, "C", False)], "B is gone, C stays 2"
    (tmp_path / "live" / "job" / "n0").rmdir()
    assert shown() == [(0, "A", True), (1, "C", False)], "no job is there: numbered anew"


def test_other_processes_on_gpus_are_reported_when_they_come_and_go(tmp_path: Path) -> None:
    now = found()
    launcher = LocalLauncher(tmp_path, now, look=lambda: now, look_seconds=0.01)
    heard: list[LauncherEvent] = []
    launcher.open(heard.append)
    try:
        now = found("B")
        (came,) = wait_for(lambda: list(heard))
        assert came == SlotUsed(now[1])
        assert launcher.slots()[1].used_by == ("x",)
        now = found(gone="B")
        wait_for(lambda: len(heard) == 2)
        assert "does not list this GPU" in launcher.slots()[1].used_by[0]
        now = found()
        wait_for(lambda: len(heard) == 3)
        assert not any(slot.used_by for slot in launcher.slots())
    finally:
        launcher.close(kill=True)


def test_granted_gpus_are_slots_under_their_own_numbers() -> None:
    slots = granted_gpu_slots("n3", ["1", "3"])
    assert [(s.id, s.device, s.kind) for s in slots] == [("n3/0", "1", "gpu"), ("n3/1", "3", "gpu")]


@pytest.mark.parametrize(
    ("granted", "devices"),
    [
        (["0", "2"], ["A", "C"]),
        (["C", "B"], ["C", "B"]),
        (["4", "6", "7"], ["A", "B", "C"]),  # the others are hidden: NVML numbers from 0 on
        (["MIG-1", "MIG-2", "MIG-3"], ["MIG-1", "MIG-2", "MIG-3"]),
        (["1", "7"], ["B", "7"]),
    ],
)
def test_granted_gpus_are_described_if_nvml_knows_them(
    granted: list[str], devices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ones.launchers.devices.gpu_slots", lambda node, is_ours: found())
    slots = granted_gpu_slots("n0", granted)
    assert [slot.device for slot in slots] == devices
    assert [slot.index for slot in slots] == list(range(len(granted)))
