#!/usr/bin/python3 -I
"""ones-launchd: the only part of ONES that runs as root. It starts the jobs of several Unix users.

It is copied to a path of root and run by the system's Python with -I. It imports nothing of ONES.
Its only client is the user of the service, which may ask for six things, one JSON object in each
packet of a Unix socket:

    hello                                          -> tree of cgroups, limits that cannot be set
    resolve  user                                  -> uid and directory of the user
    start    user, job, argv, env, devices, limits -> starts one process in a cgroup of the job;
                                                      the packet carries a pipe: its output
    change   job, devices, limits                  -> changes the cgroup, ends users of lost devices
    stop     job                                   -> kills all of the job; "empty": none is left
    watch    job                                   -> processes, memory, processes killed for memory

A process is started for users that root's file /etc/ones/launchd.conf lists, never for a system
user. So a stolen service can do what those users can do, and nothing more.
"""

from __future__ import annotations

import configparser
import ctypes
import errno
import fnmatch
import glob
import grp
import json
import os
import pwd
import re
import resource
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, NoReturn

CONFIG = "/etc/ones/launchd.conf"
MAX_MESSAGE = 64 << 10  # bytes of a request
MAX_CONNECTIONS = 8
FIRST_UID, NOBODY = 1000, 65534
START_SECONDS = 10.0  # a process that is not started by then is killed
KILL_SECONDS = 0.5  # one `stop` waits for so long; the client asks again
#: CPU weight of all jobs together; a process outside has 100. With the kernel's default for a
#: cgroup, also 100, a worker that wakes up waits behind every process outside
TREE_WEIGHT = 100 * 4 * (os.cpu_count() or 1)
TMPFS = ("/tmp", "/var/tmp", "/dev/shm")  # of the job's own, empty and gone with it
BASE_DEVICES = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"]
PTYS = (136, None)  # every pseudo-terminal

_NAME = re.compile(r"[a-z_][a-z0-9_.-]{0,31}")
_JOB = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_:-]{0,199}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_DEVICE = re.compile(r"/[A-Za-z0-9_/-]{1,200}")
#: fields of each request, besides "do"
FIELDS = {
    "hello": set(),
    "resolve": {"user"},
    "start": {"user", "job", "argv", "env", "devices", "limits"},
    "change": {"job", "devices", "limits"},
    "stop": {"job"},
    "watch": {"job"},
}
LIMITS = {"memory_mb": (64, 1 << 30), "processes": (16, 1 << 20), "cpu_weight": (1, 10_000)}

Devices = set[tuple[int, Any]]  # major and minor numbers; None: every minor
Limits = dict[str, int]

LIBC = ctypes.CDLL(None, use_errno=True)


def is_name(text: str) -> bool:
    """Whether this can be the name of a user."""
    return _NAME.fullmatch(text) is not None


class RefusedError(Exception):
    """The request is refused; the text goes to the client."""


def say(text: str) -> None:
    line = " ".join(text.encode(errors="backslashreplace").decode().split())
    print(line[:500], file=sys.stderr, flush=True)


# configuration: a file that only root can change


def check_owned_by_root(path: str | Path, is_kind: Callable[[int], bool] = stat.S_ISREG) -> None:
    """Raises RefusedError unless only root can change the path and the directories above it."""
    path = Path(path)
    for part in (path, *path.parents):
        found = part.lstat()
        if not (is_kind if part == path else stat.S_ISDIR)(found.st_mode):
            raise RefusedError(f"{part}: is a link, or not what it should be")
        is_sticky = part != path and found.st_mode & stat.S_ISVTX
        if found.st_uid != 0 or (found.st_mode & 0o022 and not is_sticky):
            raise RefusedError(f"{part}: users other than root could change it")


class Config:
    def __init__(self, path: str) -> None:
        check_owned_by_root(path)
        parser = configparser.ConfigParser(interpolation=None)
        with open(path, encoding="utf-8") as file:
            parser.read_file(file)
        given = parser["launchd"]
        known = {"service", "users", "jobs", "socket", "http", "devices", "shared_devices",
                 "groups", "private_tmp", "cgroup", "tree"}  # fmt: skip
        if unknown := set(given) - known:
            raise RefusedError(f"{path}: unknown key {sorted(unknown)[0]!r}")
        service = pwd.getpwnam(given["service"])
        self.service_uid, self.service_gid = service.pw_uid, service.pw_gid
        self.users = set(given.get("users", "").split())  # names, and @groups
        self.jobs = Path(given.get("jobs", "/var/lib/ones/jobs"))
        self.socket = Path(given.get("socket", "/run/ones/launchd.sock"))
        self.http = Path(given.get("http", "/run/ones/http"))
        self.devices = given.get("devices", "/dev/nvidia[0-9]*").split()
        self.shared = given.get(
            "shared_devices", "/dev/nvidiactl /dev/nvidia-* /dev/infiniband/*"
        ).split()
        self.groups = [grp.getgrnam(name).gr_gid for name in given.get("groups", "").split()]
        self.private_tmp = given.getboolean("private_tmp", True)
        self.cgroup = given.get("cgroup", "auto")
        self.tree = given.get("tree", "ones")
        if not re.fullmatch(r"[a-z][a-z0-9]*", self.tree):
            raise RefusedError(f"{path}: tree {self.tree!r} is not letters and digits")

    def find_user(self, name: str) -> pwd.struct_passwd:
        """The entry of a listed user. Raises RefusedError."""
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            raise RefusedError(f"user {name!r} does not exist on this machine") from None
        if user.pw_name != name or user.pw_uid < FIRST_UID or user.pw_uid == NOBODY:
            raise RefusedError(f"user {name!r} is a system user")
        if user.pw_uid == self.service_uid:
            raise RefusedError(f"user {name!r} is the user of the service")
        groups = set(os.getgrouplist(name, user.pw_gid))
        if self.service_gid in groups and self.service_gid != 0:
            raise RefusedError(f"user {name!r} is in the group of the service")
        of_groups = {f"@{group.gr_name}" for group in grp.getgrall() if group.gr_gid in groups}
        if not (of_groups | {name}) & self.users:
            raise RefusedError(
                f"user {name!r} is not listed in launchd.conf: ask the administrator"
            )
        return user


# requests


def parse(data: bytes) -> dict[str, Any]:
    """A checked request. Raises RefusedError for everything that is not exactly as documented."""
    try:
        request = json.loads(data.decode(), object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError):
        raise RefusedError("not a JSON object in UTF-8") from None
    if not isinstance(request, dict) or not isinstance(request.get("do"), str):
        raise RefusedError("not a request")
    fields = FIELDS.get(request["do"])
    if fields is None or set(request) != fields | {"do"}:
        raise RefusedError("unknown request, or not its fields")
    for name, check in _CHECKS.items():
        if name in fields and not check(request[name]):
            raise RefusedError(f"{name}: is not valid")
    return request


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a key is given twice")
    return dict(pairs)


def _is_text(value: object) -> bool:
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        return bool(value.encode() or True)
    except UnicodeEncodeError:
        return False


def _is_argv(argv: object) -> bool:
    return (
        isinstance(argv, list)
        and 1 <= len(argv) <= 64
        and all(map(_is_text, argv))
        and argv[0].startswith("/")
    )


def _is_environment(env: object) -> bool:
    return (
        isinstance(env, dict)
        and len(env) <= 64
        and all(_VARIABLE.fullmatch(name) and _is_text(value) for name, value in env.items())
    )


def _is_limits(limits: object) -> bool:
    return isinstance(limits, dict) and all(
        name in LIMITS and type(value) is int and LIMITS[name][0] <= value <= LIMITS[name][1]
        for name, value in limits.items()
    )


_CHECKS = {
    "user": lambda name: isinstance(name, str) and bool(_NAME.fullmatch(name)),
    "job": lambda job: isinstance(job, str) and bool(_JOB.fullmatch(job)),
    "argv": _is_argv,
    "env": _is_environment,
    "devices": lambda paths: (
        isinstance(paths, list)
        and len(paths) <= 64
        and all(isinstance(path, str) and _DEVICE.fullmatch(path) for path in paths)
    ),
    "limits": _is_limits,
}


def device_numbers(config: Config, paths: Iterable[str]) -> Devices:
    """Major and minor numbers of devices that root's file allows. Raises RefusedError."""
    numbers = set()
    for path in paths:
        if not any(fnmatch.fnmatchcase(path, pattern) for pattern in config.devices):
            raise RefusedError(f"{path}: launchd.conf does not list it as a device of jobs")
        try:
            found = os.lstat(path)
        except OSError as problem:
            raise RefusedError(f"{path}: {problem.strerror}") from None
        if not stat.S_ISCHR(found.st_mode):
            raise RefusedError(f"{path}: is not a device")
        numbers.add((os.major(found.st_rdev), os.minor(found.st_rdev)))
    return numbers


def shared_numbers(config: Config) -> Devices:
    """Devices that every job may use; never one that jobs get one by one."""
    paths = [p for pattern in config.shared for p in glob.glob(pattern)]
    return (existing_numbers(BASE_DEVICES + paths) | {PTYS, (5, 2)}) - own_numbers(config)


def own_numbers(config: Config) -> Devices:
    """All devices that jobs get one by one."""
    return existing_numbers(p for pattern in config.devices for p in glob.glob(pattern))


def existing_numbers(paths: Iterable[str]) -> Devices:
    numbers: Devices = set()
    for path in paths:
        with suppress(OSError):
            found = os.lstat(path)
            if stat.S_ISCHR(found.st_mode):
                numbers.add((os.major(found.st_rdev), os.minor(found.st_rdev)))
    return numbers


# cgroups: one interface, three backends


def write(path: Path, text: object) -> None:
    with open(path, "w") as file:
        file.write(str(text))


def read(path: str | Path) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


class Cgroup:
    """The cgroups of jobs. `create` puts a process, and so all that it starts, into a new one."""

    #: limit -> controller, file, what is written
    FILES: ClassVar[dict[str, tuple[str, str, Callable[[int], int]]]]
    NO_SWAP: tuple[str, str]  # a file of the controller memory, and what keeps a job from swapping
    MEMORY_KILLS: str  # the file that counts them
    MEMORY_USED: str
    roots: dict[str, Path]  # controller -> where the cgroups of jobs are
    missing: tuple[str, ...] = ()  # limits that this machine cannot set

    def allow_devices(self, job: str, devices: Devices) -> None:
        raise NotImplementedError

    def begin_kill(self, job: str) -> None:
        """Keeps the job from starting further processes."""
        raise NotImplementedError

    def create(self, job: str, pid: int, limits: Limits, devices: Devices) -> None:
        directories = sorted({root / job for root in self.roots.values()})
        for directory in directories:
            directory.mkdir(exist_ok=True)
        with suppress(OSError, KeyError):  # a kernel without swap
            write(self.roots["memory"] / job / self.NO_SWAP[0], self.NO_SWAP[1])
        self.change(job, limits, devices)
        for directory in directories:
            write(directory / "cgroup.procs", pid)

    def change(self, job: str, limits: Limits, devices: Devices) -> None:
        self.allow_devices(job, devices)  # first: a limit may be refused
        for limit, value in sorted(limits.items()):
            if limit not in self.missing:
                controller, file, convert = self.FILES[limit]
                try:
                    write(self.roots[controller] / job / file, convert(value))
                except OSError as problem:
                    if problem.errno != errno.EBUSY:
                        raise
                    say(f"job={job} uses more than its new limit: {limit}={value} is not set")

    def directory(self, job: str) -> Path:
        """A directory with the file cgroup.procs of the job."""
        return self.roots["pids"] / job

    def usage(self, job: str) -> tuple[int, int]:
        """Bytes of memory, and processes that were killed because the limit was reached."""
        if "memory" not in self.roots:
            return 0, 0
        directory = self.roots["memory"] / self.directory(job).name
        killed = re.search(r"^oom_kill (\d+)", read(directory / self.MEMORY_KILLS), re.M)
        used = read(directory / self.MEMORY_USED).strip() or "0"
        return int(used), int(killed[1]) if killed else 0

    def remove(self, job: str) -> None:
        for root in reversed(dict.fromkeys(self.roots.values())):  # that of `directory` is last
            with suppress(FileNotFoundError):
                (root / job).rmdir()

    def pids(self, job: str) -> list[int]:
        return [int(pid) for pid in read(self.directory(job) / "cgroup.procs").split()]

    def exists(self, job: str) -> bool:
        return self.directory(job).is_dir()

    def kill(self, job: str) -> bool:
        """Kills every process of the job. True if none is left."""
        deadline = time.monotonic() + KILL_SECONDS
        if self.pids(job):
            self.begin_kill(job)
        while True:
            pids = self.pids(job)
            self.kill_some(job, pids)
            reap()
            if not pids:
                with suppress(OSError):  # the last process is not gone completely
                    self.remove(job)
                    return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)

    def kill_some(self, job: str, pids: list[int]) -> None:
        for start in range(0, len(pids), 256):
            handles = {}
            for pid in pids[start : start + 256]:
                with suppress(OSError):
                    handles[pid] = os.pidfd_open(pid)
            there = set(self.pids(job))  # else the number belongs to another process by now
            for pid, handle in handles.items():
                with suppress(OSError):
                    if pid in there:
                        signal.pidfd_send_signal(handle, signal.SIGKILL)
                os.close(handle)


class CgroupV1(Cgroup):
    """One tree for each controller. `mounts`: controller -> where it is mounted."""

    FILES: ClassVar = {
        "cpu_weight": ("cpu", "cpu.shares", lambda weight: max(2, weight * 1024 // 100)),
        "memory_mb": ("memory", "memory.limit_in_bytes", lambda mb: mb << 20),
        "processes": ("pids", "pids.max", int),
    }
    NO_SWAP = ("memory.swappiness", "0")
    MEMORY_KILLS, MEMORY_USED = "memory.oom_control", "memory.usage_in_bytes"

    def __init__(self, tree: str, mounts: Any) -> None:
        if not {"devices", "pids"} <= set(mounts):
            raise RefusedError("cgroup v1: the controllers devices and pids are not mounted")
        names = [name for name in ("pids", "devices", "memory", "cpu") if name in mounts]
        self.roots = {name: Path(mounts[name]) / tree for name in names}
        self.missing = tuple(key for key, file in self.FILES.items() if file[0] not in names)
        for root in self.roots.values():
            root.mkdir(exist_ok=True)
        if "cpu" in names:
            write(self.roots["cpu"] / "cpu.shares", min(TREE_WEIGHT * 1024 // 100, 1 << 18))

    def allow_devices(self, job: str, devices: Devices) -> None:
        directory = self.roots["devices"] / job
        allowed = set(read(directory / "devices.list").splitlines())
        wanted = {f"c {major}:{'*' if minor is None else minor} rwm" for major, minor in devices}
        if "a *:* rwm" in allowed:  # a new cgroup: whatever its parent may
            write(directory / "devices.deny", "a")
            allowed = set()
        for rule in sorted(wanted - allowed):
            write(directory / "devices.allow", rule)
        for rule in sorted(allowed - wanted):
            write(directory / "devices.deny", rule)

    def begin_kill(self, job: str) -> None:
        write(self.roots["pids"] / job / "pids.max", 0)


class CgroupV2(Cgroup):
    """The unified tree. A small eBPF program decides about devices. `mount`: where it is mounted"""

    FILES: ClassVar = {
        "cpu_weight": ("cpu", "cpu.weight", int),
        "memory_mb": ("memory", "memory.max", lambda mb: mb << 20),
        "processes": ("pids", "pids.max", int),
    }
    NO_SWAP = ("memory.swap.max", "0")
    MEMORY_KILLS, MEMORY_USED = "memory.events", "memory.current"

    def __init__(self, tree: str, mount: Any) -> None:
        self.root = Path(mount) / tree
        self.roots = dict.fromkeys(("pids", "memory", "cpu"), self.root)
        self.prepare(Path(mount))

    def prepare(self, mount: Path) -> None:
        self.root.mkdir(exist_ok=True)
        for directory in (mount, self.root):
            there = read(directory / "cgroup.controllers").split()
            for name in sorted(self.roots):
                if name in there:
                    write(directory / "cgroup.subtree_control", f"+{name}")
        there = read(self.root / "cgroup.controllers").split()
        if "cpu" in there:
            write(self.root / "cpu.weight", min(TREE_WEIGHT, 10_000))
        self.missing = tuple(key for key, file in self.FILES.items() if file[0] not in there)

    def allow_devices(self, job: str, devices: Devices) -> None:
        handle = os.open(self.directory(job), os.O_RDONLY | os.O_DIRECTORY)
        try:
            attach_device_program(handle, device_program(devices))
        finally:
            os.close(handle)

    def begin_kill(self, job: str) -> None:
        try:
            write(self.directory(job) / "cgroup.kill", 1)
        except FileNotFoundError:  # before Linux 5.14
            write(self.directory(job) / "pids.max", 0)


class Systemd(CgroupV2):
    """A transient scope of systemd for each job, below the slice of the tree."""

    def __init__(self, tree: str, mount: Any, run: Any = subprocess.run) -> None:
        self.run = run
        super().__init__(f"{tree}.slice", mount)
        self.tree = tree

    def prepare(self, mount: Path) -> None:
        """systemd makes the slice and enables its controllers."""

    def unit(self, job: str) -> str:
        return f"{self.tree}-{job}.scope"

    def directory(self, job: str) -> Path:
        return self.root / self.unit(job)

    def create(self, job: str, pid: int, limits: Limits, devices: Devices) -> None:
        properties = [
            "PIDs", "au", "1", str(pid), "Slice", "s", f"{self.tree}.slice",
            "CollectMode", "s", "inactive-or-failed", "DevicePolicy", "s", "strict",
        ]  # fmt: skip
        given = [("MemorySwapMax", 0), *self.limit_properties(limits)]
        for name, value in given:
            properties += [name, "t", str(value)]
        paths = self.device_names(devices)
        properties += ["DeviceAllow", "a(ss)", str(len(paths))]
        for path in paths:
            properties += [path, "rwm"]
        self.command(
            "busctl", "call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1",
            "org.freedesktop.systemd1.Manager", "StartTransientUnit", "ssa(sv)a(sa(sv))",
            self.unit(job), "fail", str(5 + len(given)), *properties, "0",
        )  # fmt: skip
        deadline = time.monotonic() + START_SECONDS
        while pid not in self.pids(job):  # systemd moves the process after its answer
            if time.monotonic() > deadline:
                raise RefusedError(f"systemd did not make {self.unit(job)}")
            time.sleep(0.005)

    def change(self, job: str, limits: Limits, devices: Devices) -> None:
        self.command(
            "systemctl", "set-property", "--runtime", self.unit(job),
            *(f"{name}={value}" for name, value in self.limit_properties(limits)),
            "DeviceAllow=", *(f"DeviceAllow={path} rwm" for path in self.device_names(devices)),
        )  # fmt: skip

    @staticmethod
    def limit_properties(limits: Limits) -> list[tuple[str, int]]:
        names = {"memory_mb": "MemoryMax", "processes": "TasksMax", "cpu_weight": "CPUWeight"}
        return [
            (names[name], value << 20 if name == "memory_mb" else value)
            for name, value in sorted(limits.items())
        ]

    @staticmethod
    def device_names(devices: Devices) -> list[str]:
        return sorted(
            "char-pts" if minor is None else f"/dev/char/{major}:{minor}"
            for major, minor in devices
        )

    def command(self, *argv: str) -> None:
        done = self.run(
            ["/usr/bin/" + argv[0], *argv[1:]], capture_output=True, text=True, timeout=30,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"}, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise RefusedError(f"{argv[0]}: {done.stderr.strip()[:200]}")

    def remove(self, job: str) -> None:
        """systemd removes an empty scope."""


def device_program(devices: Devices) -> bytes:
    """An eBPF program that allows these character devices and nothing else."""

    def step(
        code: int, register: int = 0, offset: int = 0, value: int = 0, source: int = 0
    ) -> bytes:
        return struct.pack("<BBhi", code, source << 4 | register, offset, value)

    def exit_with(value: int) -> bytes:
        return step(0xB7, 0, 0, value) + step(0x95)

    program = step(0x61, 2, 0, 0, 1) + step(0x57, 2, 0, 0xFFFF)  # r2 = kind of the device
    program += step(0x61, 4, 4, 0, 1) + step(0x61, 5, 8, 0, 1)  # r4, r5 = its numbers
    program += step(0x15, 2, 2, 2) + exit_with(0)  # not a character device
    for major, minor in sorted(devices, key=str):
        if minor is None:
            program += step(0x55, 4, 2, major) + exit_with(1)
        else:
            program += step(0x55, 4, 3, major) + step(0x55, 5, 2, minor) + exit_with(1)
    return program + exit_with(0)


def attach_device_program(cgroup: int, program: bytes) -> None:
    """Loads the program and puts it in place of the one before."""
    number = {"x86_64": 321, "aarch64": 280}.get(os.uname().machine)
    if number is None:
        raise RefusedError(f"cgroup v2 without systemd: not supported on {os.uname().machine}")

    def bpf(command: int, fields: bytes) -> int:
        attributes = ctypes.create_string_buffer(fields, 128)
        result = LIBC.syscall(number, command, attributes, 128)
        if result < 0:
            raise OSError(ctypes.get_errno(), f"bpf: {os.strerror(ctypes.get_errno())}")
        return int(result)

    code, licence = ctypes.create_string_buffer(program), ctypes.create_string_buffer(b"GPL")
    addresses = (ctypes.addressof(code), ctypes.addressof(licence))
    loaded = bpf(5, struct.pack("<IIQQ", 15, len(program) // 8, *addresses))
    try:
        bpf(8, struct.pack("<IIII", cgroup, loaded, 6, 0))
    finally:
        os.close(loaded)


def find_cgroup(kind: str, tree: str, mounts: str = "/proc/mounts") -> Cgroup:
    """The backend of this machine. Raises RefusedError."""
    unified = None
    old: dict[str, str] = {}
    for line in read(mounts).splitlines():
        _, where, what, options = line.split()[:4]
        if what == "cgroup2":
            unified = where
        elif what == "cgroup":
            old |= {option: where for option in options.split(",")}
    is_pure = unified is not None and "devices" not in old
    if kind == "auto":
        has_systemd = Path("/run/systemd/system").is_dir()
        kind = ("systemd" if has_systemd else "v2") if is_pure else "v1"
    if kind == "v1":
        return CgroupV1(tree, old)
    if unified is None or kind not in ("systemd", "v2"):
        raise RefusedError(f"cgroup {kind!r}: is not mounted, or is not auto, systemd, v2 or v1")
    return (Systemd if kind == "systemd" else CgroupV2)(tree, unified)


def holders(pids: list[int], devices: Devices) -> list[int]:
    """Processes that have one of the devices open or mapped. Each thread may have its own files."""
    found = []
    for pid in pids:
        files = (*glob.iglob(f"/proc/{pid}/task/*/fd/*"), *glob.iglob(f"/proc/{pid}/map_files/*"))
        try:
            os.readlink(f"/proc/{pid}/exe")
            if devices.isdisjoint(map(device_of, files)):
                continue
        except OSError:  # its first thread has ended: nothing says what the others have mapped
            pass
        found.append(pid)
    return found


def device_of(path: str) -> tuple[int, int]:
    """Numbers of an open device, (0, 0) for other files. Never waits for a file system."""
    found = ctypes.create_string_buffer(256)
    if LIBC.statx(-100, path.encode(), 0x4000 | 0x800, 3, found) != 0:  # AT_STATX_DONT_SYNC
        return 0, 0
    major, minor = struct.unpack_from("II", found, 128)
    is_device = stat.S_ISCHR(struct.unpack_from("H", found, 28)[0])
    return (major, minor) if is_device else (0, 0)


# processes


def reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def drop_to(user: pwd.struct_passwd, groups: Iterable[int]) -> None:
    """Becomes the user, for good. Raises OSError or RuntimeError."""
    os.setgroups(sorted({*os.getgrouplist(user.pw_name, user.pw_gid), *groups}))
    os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
    os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
    if os.getresuid() != (user.pw_uid,) * 3 or os.getresgid() != (user.pw_gid,) * 3:
        raise RuntimeError("the user was not changed")
    if LIBC.prctl(38, 1, 0, 0, 0) != 0:  # PR_SET_NO_NEW_PRIVS: no setuid program helps
        raise RuntimeError("no_new_privs was not set")
    try:
        os.setuid(0)
    except PermissionError:
        return
    raise RuntimeError("the process could become root again")


def isolate_tmp() -> None:
    """Gives the process, and all that it starts, directories for temporary files of its own."""
    if LIBC.unshare(0x20000) != 0:  # CLONE_NEWNS
        raise OSError(ctypes.get_errno(), "no mount namespace")
    _mount(b"none", b"/", None, 0x80000 | 0x4000, None)  # MS_SLAVE | MS_REC
    for path in TMPFS:
        if os.path.isdir(path):
            _mount(b"tmpfs", path.encode(), b"tmpfs", 2 | 4, b"mode=1777")  # no suid, no devices


def _mount(
    source: bytes, target: bytes, kind: bytes | None, flags: int, data: bytes | None
) -> None:
    if LIBC.mount(source, target, kind, ctypes.c_ulong(flags), data) != 0:
        raise OSError(ctypes.get_errno(), f"mount {target.decode()}")


def leave_keyring() -> None:
    """Keys of the session of root, and of other jobs, would be readable by the process."""
    number = {"x86_64": 250, "aarch64": 219}.get(os.uname().machine)
    if number is not None and LIBC.syscall(number, 1, None) < 0:  # KEYCTL_JOIN_SESSION_KEYRING
        problem = ctypes.get_errno()
        if problem not in (errno.ENOSYS, errno.EPERM):  # no keys here, for any process
            raise OSError(problem, "no session keyring of its own")


def run_as(
    config: Config,
    user: pwd.struct_passwd,
    argv: list[str],
    env: dict[str, str],
    output: int,
    wait: int,
    problem: int,
) -> NoReturn:
    """In the child: becomes the user and the program. Does not return, whatever happens."""
    try:
        os.setsid()
        if os.read(wait, 1) != b"g":  # until it is in the cgroup of its job
            os._exit(1)
        for number in range(1, signal.NSIG):
            if number not in (signal.SIGKILL, signal.SIGSTOP):
                try:
                    signal.signal(number, signal.SIG_DFL)
                except (OSError, ValueError):
                    continue  # numbers that the C library keeps for itself
        if config.private_tmp:
            isolate_tmp()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 1 << 16), most))
        os.umask(0o027)
        null = os.open("/dev/null", os.O_RDWR)
        for source, target in ((null, 0), (output, 1), (null, 2)):
            os.dup2(source, target)
        os.dup2(problem, 3)  # closed by exec
        os.set_inheritable(3, False)
        os.closerange(4, 1 << 16)
        problem = 3
        os.chdir("/")
        drop_to(user, config.groups)
        leave_keyring()
        os.execve(argv[0], argv, env)
    except BaseException as error:
        os.write(problem, str(error).encode(errors="replace")[:500] or b"failed")
    finally:
        os._exit(1)  # never back into the loop of root


class Launchd:
    """Answers requests. Its only state is in the cgroups, so it can be restarted at any time."""

    def __init__(self, config_path: str) -> None:
        self.config_path = config_path
        self.config = Config(config_path)
        self.cgroup = find_cgroup(self.config.cgroup, self.config.tree)

    def answer(self, request: dict[str, Any], handles: list[int]) -> dict[str, Any]:
        if "user" in request:  # root may have changed the users; a wrong file stops no `stop`
            self.config = Config(self.config_path)
        do: Callable[..., dict[str, Any]] = getattr(self, "do_" + request.pop("do"))
        return do(handles=handles, **request)

    def do_hello(self, handles: list[int]) -> dict[str, Any]:
        return {"tree": self.config.tree, "missing": list(self.cgroup.missing)}

    def do_resolve(self, user: str, handles: list[int]) -> dict[str, Any]:
        entry = self.config.find_user(user)
        directory = self.user_directory(entry)
        return {"uid": entry.pw_uid, "directory": str(directory)}

    def user_directory(self, user: pwd.struct_passwd) -> Path:
        """Makes the user's directory, which otherwise only the service may read."""
        directory = self.config.jobs / user.pw_name
        try:
            os.mkdir(directory, 0o700)
        except FileExistsError:
            found = directory.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (user.pw_uid, 0):
                raise RefusedError(f"{directory}: does not belong to {user.pw_name}") from None
            if found.st_uid:
                return directory
        os.chown(directory, user.pw_uid, self.config.service_gid)
        os.chmod(directory, 0o2750)
        return directory

    def do_start(
        self,
        user: str,
        job: str,
        argv: list[str],
        env: dict[str, str],
        devices: list[str],
        limits: Limits,
        handles: list[int],
    ) -> dict[str, Any]:
        entry = self.config.find_user(user)
        allowed = device_numbers(self.config, devices) | shared_numbers(self.config)
        if len(handles) != 1 or not stat.S_ISFIFO(os.fstat(handles[0]).st_mode):
            raise RefusedError("start needs one pipe for the output")
        self.user_directory(entry)
        if self.cgroup.exists(job) and not self.cgroup.kill(job):
            raise RefusedError(f"job {job}: processes of an earlier start are left")
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin", **env, "HOME": entry.pw_dir,
               "USER": user, "LOGNAME": user, "SHELL": entry.pw_shell or "/bin/sh"}  # fmt: skip
        wait, go = os.pipe()
        problem, problem_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(go)
            run_as(self.config, entry, argv, env, handles[0], wait, problem_end)
        os.close(wait)
        os.close(problem_end)
        try:
            self.cgroup.create(job, pid, limits, allowed)
            os.write(go, b"g")
            ready, _, _ = select.select([problem], [], [], START_SECONDS)
            text = os.read(problem, 500).decode(errors="replace") if ready else "it took too long"
            if text:
                raise RefusedError(f"not started: {text}")
        except BaseException:
            os.kill(pid, signal.SIGKILL)  # our child, not reaped yet: its number is its own
            self.cgroup.kill(job)
            raise
        finally:
            os.close(go)
            os.close(problem)
        say(f"started job={job} user={user} pid={pid} devices={','.join(devices)}")
        return {"pid": pid}

    def do_change(
        self, job: str, devices: list[str], limits: Limits, handles: list[int]
    ) -> dict[str, Any]:
        allowed = device_numbers(self.config, devices) | shared_numbers(self.config)
        if not self.cgroup.exists(job):
            return {"killed": []}
        self.cgroup.change(job, limits, allowed)
        lost = own_numbers(self.config) - allowed
        killed: list[int] = []
        deadline = time.monotonic() + KILL_SECONDS
        # a device that is open already stays open, and may have gone on to a new process
        while lost and (left := holders(self.cgroup.pids(job), lost)):
            killed += [pid for pid in left if pid not in killed]
            if time.monotonic() > deadline:
                self.cgroup.kill(job)
                break
            self.cgroup.kill_some(job, left)
            reap()
            time.sleep(0.001)
        return {"killed": killed[:1000]}

    def do_stop(self, job: str, handles: list[int]) -> dict[str, Any]:
        had = self.cgroup.exists(job)
        empty = not had or self.cgroup.kill(job)
        if had:
            say(f"stopped job={job} empty={empty}")
        return {"empty": empty}

    def do_watch(self, job: str, handles: list[int]) -> dict[str, Any]:
        used, killed = self.cgroup.usage(job)
        return {"processes": len(self.cgroup.pids(job)), "memory": used, "memory_kills": killed}

    # the socket

    def listen(self) -> socket.socket:
        path = self.config.socket
        for directory in (path.parent, self.config.jobs):
            directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            directory.chmod(0o755)
            check_owned_by_root(directory, stat.S_ISDIR)
        self.config.http.mkdir(mode=0o755, exist_ok=True)
        os.chown(self.config.http, self.config.service_uid, self.config.service_gid)
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        os.umask(0o177)
        listener.bind(str(path))
        os.umask(0o022)
        os.chown(path, self.config.service_uid, 0)
        listener.listen(MAX_CONNECTIONS)
        return listener

    def serve(self) -> NoReturn:
        listener = self.listen()
        connections: list[socket.socket] = []
        say(f"ready socket={self.config.socket} cgroup={type(self.cgroup).__name__}"
            f" missing={','.join(self.cgroup.missing) or 'none'}")  # fmt: skip
        while True:
            ready, _, _ = select.select([listener, *connections], [], [], 1.0)
            reap()
            for source in ready:
                if source is listener:
                    self.accept(listener, connections)
                elif not self.receive(source):
                    connections.remove(source)
                    source.close()

    def accept(self, listener: socket.socket, connections: list[socket.socket]) -> None:
        connection, _ = listener.accept()
        found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid, uid, _ = struct.unpack("3i", found)
        if uid not in (self.config.service_uid, 0) or len(connections) >= MAX_CONNECTIONS:
            say(f"refused connection uid={uid} pid={pid}")
            connection.close()
        else:
            connection.settimeout(5.0)
            connections.append(connection)

    def receive(self, connection: socket.socket) -> bool:
        """Answers one packet. False if the connection has ended or sent nonsense."""
        try:
            data, handles, flags, _ = socket.recv_fds(connection, MAX_MESSAGE, 4)
        except OSError:
            return False
        try:
            if not data:
                return False
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise RefusedError("the request is too large")
            answer = {"ok": True, **self.answer(parse(data), handles)}
        except RefusedError as problem:
            say(f"refused {problem}")
            answer = {"ok": False, "error": str(problem)}
        except Exception as problem:  # one request must not end the process
            say(f"failed {type(problem).__name__}: {problem}")
            answer = {"ok": False, "error": f"ones-launchd: {problem}"[:500]}
        finally:
            for handle in handles:
                os.close(handle)
        try:
            connection.send(json.dumps(answer).encode())
        except OSError:
            return False
        return True


def main(argv: list[str]) -> int:
    if len(argv) > 2 or argv[1:2] in (["-h"], ["--help"]):
        print("usage: ones-launchd [CONFIG]    (as root; started by systemd)", file=sys.stderr)
        return 2
    try:
        if os.geteuid() != 0:
            raise RefusedError("must be started by root")
        if not sys.flags.isolated:
            raise RefusedError("must be run with: /usr/bin/python3 -I")
        check_owned_by_root(os.path.abspath(__file__))
        Launchd(argv[1] if len(argv) == 2 else CONFIG).serve()
    except (RefusedError, OSError, KeyError, ValueError, configparser.Error) as problem:
        say(f"error: {problem}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
