"""The backends for cgroup v2 and systemd: against directories and a double; devices for real."""

from __future__ import annotations

import os
import subprocess
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ones.exec import launchd
from tests.unix_users import Machine

DEVICES = {(1, 3), (195, 0), (136, None)}
LIMITS = {"memory_mb": 512, "processes": 100, "cpu_weight": 200}


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is written to files of cgroups, in order."""
    found: list[tuple[str, str]] = []

    def write(path: Path, text: object) -> None:
        found.append((path.name, str(text)))

    monkeypatch.setattr(launchd, "write", write)
    return found


def test_v2_sets_limits_and_devices_before_the_process_enters(
    tmp_path: Path, written: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for directory in (tmp_path, tmp_path / "ones"):
        directory.mkdir(exist_ok=True)
        (directory / "cgroup.controllers").write_text("cpu memory pids\n")

    def attach(handle: int, program: bytes) -> None:
        assert program == launchd.device_program(DEVICES)
        written.append(("devices", ""))

    monkeypatch.setattr(launchd, "attach_device_program", attach)
    cgroup = launchd.CgroupV2("ones", tmp_path)
    assert cgroup.missing == ()
    enabled = [("cgroup.subtree_control", f"+{name}") for name in ("cpu", "memory", "pids")]
    weight = str(400 * (os.cpu_count() or 1))
    assert written == [*enabled * 2, ("cpu.weight", weight)], "all jobs outweigh one process"
    written.clear()
    cgroup.create("a-1", 77, LIMITS, DEVICES)
    assert written == [
        ("memory.swap.max", "0"), ("devices", ""), ("cpu.weight", "200"),
        ("memory.max", str(512 << 20)), ("pids.max", "100"), ("cgroup.procs", "77"),
    ]  # fmt: skip
    (tmp_path / "ones" / "a-1" / "memory.events").write_text("low 0\noom_kill 3\n")
    (tmp_path / "ones" / "a-1" / "memory.current").write_text("4096\n")
    assert cgroup.usage("a-1") == (4096, 3)
    written.clear()
    cgroup.begin_kill("a-1")
    assert written == [("cgroup.kill", "1")]


def test_v2_says_which_limits_the_machine_cannot_set(tmp_path: Path) -> None:
    assert launchd.CgroupV2("ones", tmp_path).missing == ("cpu_weight", "memory_mb", "processes")


class Bus:
    """Stands in for systemd: answers, records the calls, and moves the process as systemd does."""

    def __init__(self, mount: Path) -> None:
        self.mount, self.calls, self.fails = mount, list[list[str]](), False

    def __call__(self, argv: list[str], **more: Any) -> types.SimpleNamespace:
        assert more["env"] == {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}
        self.calls.append(argv)
        if self.fails:
            return types.SimpleNamespace(returncode=1, stderr="Access denied\n")
        if "StartTransientUnit" in argv:
            scope = self.mount / "ones.slice" / argv[argv.index("ssa(sv)a(sa(sv))") + 1]
            scope.mkdir(parents=True)
            (scope / "cgroup.procs").write_text(argv[argv.index("au") + 2])
        return types.SimpleNamespace(returncode=0, stderr="")


def test_systemd_makes_a_scope_with_the_limits_and_devices(tmp_path: Path) -> None:
    bus = Bus(tmp_path)
    cgroup = launchd.Systemd("ones", tmp_path, bus)
    cgroup.create("a-1", 77, LIMITS, DEVICES)
    (call,) = bus.calls
    assert call[:8] == [
        "/usr/bin/busctl", "call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1",
        "org.freedesktop.systemd1.Manager", "StartTransientUnit", "ssa(sv)a(sa(sv))",
        "ones-a-1.scope",
    ]  # fmt: skip
    assert call[8:] == [
        "fail", "9",
        "PIDs", "au", "1", "77",
        "Slice", "s", "ones.slice",
        "CollectMode", "s", "inactive-or-failed",
        "DevicePolicy", "s", "strict",
        "MemorySwapMax", "t", "0",
        "CPUWeight", "t", "200",
        "MemoryMax", "t", str(512 << 20),
        "TasksMax", "t", "100",
        "DeviceAllow", "a(ss)", "3",
        "/dev/char/195:0", "rwm", "/dev/char/1:3", "rwm", "char-pts", "rwm",
        "0",
    ]  # fmt: skip
    assert cgroup.pids("a-1") == [77]


def test_systemd_changes_and_refuses(tmp_path: Path) -> None:
    bus = Bus(tmp_path)
    cgroup = launchd.Systemd("ones", tmp_path, bus)
    cgroup.change("a-1", {"memory_mb": 64}, {(195, 1)})
    assert bus.calls == [
        ["/usr/bin/systemctl", "set-property", "--runtime", "ones-a-1.scope",
         f"MemoryMax={64 << 20}", "DeviceAllow=", "DeviceAllow=/dev/char/195:1 rwm"]
    ]  # fmt: skip
    bus.fails = True
    with pytest.raises(launchd.RefusedError, match="systemctl: Access denied"):
        cgroup.change("a-1", {}, set())


@pytest.mark.parametrize(
    ("kind", "mounts", "what"),
    [
        ("v2", "cgroup2 {0} cgroup2 rw 0 0", launchd.CgroupV2),
        ("systemd", "cgroup2 {0} cgroup2 rw 0 0", launchd.Systemd),
        ("v1", "c {0} cgroup rw,pids,devices 0 0\nu {0} cgroup2 rw 0 0", launchd.CgroupV1),
        ("auto", "c {0} cgroup rw,pids,devices 0 0\nu {0} cgroup2 rw 0 0", launchd.CgroupV1),
    ],
)
def test_the_backend_is_that_of_the_machine(
    kind: str, mounts: str, what: type, tmp_path: Path
) -> None:
    file = tmp_path / "mounts"
    file.write_text(mounts.format(tmp_path) + "\n")
    assert type(launchd.find_cgroup(kind, "ones", str(file))) is what


def test_a_machine_without_cgroups_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text("")
    with pytest.raises(launchd.RefusedError, match="are not mounted"):
        launchd.find_cgroup("auto", "ones", str(tmp_path / "mounts"))


@pytest.fixture
def unified() -> Iterator[launchd.CgroupV2]:
    """The real tree of cgroup v2, if there is one, also beside v1."""
    lines = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    mounts = [line[1] for line in lines if line[2] == "cgroup2"]
    if os.geteuid() != 0 or not mounts:
        pytest.skip("needs root and a mounted cgroup v2")
    name = f"onest{os.getpid()}"
    try:
        cgroup = launchd.CgroupV2(name, mounts[0])
        cgroup.directory("probe").mkdir()
        cgroup.allow_devices("probe", {(1, 3)})
    except OSError as problem:
        pytest.skip(f"cgroup v2 cannot be used: {problem}")
    finally:
        for directory in (Path(mounts[0]) / name / "probe", Path(mounts[0]) / name):
            if directory.is_dir() and directory.name == "probe":
                directory.rmdir()
    yield cgroup
    cgroup.root.rmdir()


def test_v2_fences_devices_and_kills_everything(unified: launchd.CgroupV2) -> None:
    """The eBPF program and `cgroup.kill`, with real processes."""
    loop = (
        "read x; cat /dev/zero | head -c 1 >/dev/null && echo zero;"
        " cat /dev/full | head -c 1 >/dev/null && echo full;"
        " (setsid env -i sleep 1000 &) ; read y; : < /dev/full && echo now; sleep 1000"
    )
    process = subprocess.Popen(
        ["sh", "-c", loop], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        unified.create("a-1", process.pid, {}, {(1, 3), (1, 5)})
        process.stdin.write("\n")
        process.stdin.flush()
        said = [process.stdout.readline() for _ in range(3)]
        assert "zero\n" in said
        assert "cat: /dev/full: Operation not permitted\n" in said
        unified.change("a-1", {}, {(1, 3), (1, 5), (1, 7)})
        process.stdin.write("\n")
        process.stdin.flush()
        rest = said[-1:] if "now\n" in said else [process.stdout.readline()]
        assert "now\n" in rest or process.stdout.readline() == "now\n"
        while not unified.kill("a-1"):
            continue
        assert not unified.exists("a-1")
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_all_jobs_together_weigh_more_than_a_process_outside(machine: Machine) -> None:
    """With v1's default of 1024, workers that wake up wait behind each process outside."""
    shares = Path(f"/sys/fs/cgroup/cpu/{machine.name}/cpu.shares").read_text()
    assert int(shares) == 4 * 1024 * (os.cpu_count() or 1)
