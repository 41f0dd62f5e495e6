"""What ones-launchd refuses, and what a job can and cannot do: real processes of real users."""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ones.control.pruning import DAY, Pruning, Retention
from ones.exec import Exit, launchd
from ones.launchers import Exited, Launch, LauncherEvent
from ones.launchers.api import SupportsUsers
from ones.launchers.job_user import JobUser
from ones.launchers.launchd_client import (
    JobLimits,
    LaunchdClient,
    LaunchdError,
    remove_as_user,
)
from tests.processes import is_alive, wait_for
from tests.unix_users import Machine


class Lab:
    """A launcher that runs jobs as the users of the machine."""

    def __init__(self, machine: Machine, limits: JobLimits | None = None) -> None:
        self.machine, self.limits = machine, limits
        self.root = machine.root / f"service-{secrets.token_hex(4)}"
        self.root.mkdir(mode=0o700)
        self.open()

    def open(self) -> None:
        self.events: list[LauncherEvent] = []
        self.launcher = self.machine.launcher(self.root, limits=self.limits)
        self.launcher.open(self.events.append)

    def run(self, user: str, command: str, id: str = "", *, slot: int = 0, job: str = "") -> str:
        id = id or f"j{secrets.token_hex(4)}"
        self.launcher.launch(
            Launch(
                id=id, job=job or id, slots=(f"n0/{slot}",), argv=("sh", "-c", command), cwd="/",
                env={"PATH": os.environ["PATH"]}, grace_seconds=1.0, user=user,
            )
        )  # fmt: skip
        return id

    def exit_of(self, id: str) -> Exit:
        def exits() -> list[Exit]:
            return [e.exit for e in self.events if isinstance(e, Exited) and e.id == id]

        return wait_for(exits, f"{id}: {self.events}")[0]

    def output(self, id: str, job: str = "") -> str:
        return self.launcher.logs(job or id, id, 0, 1 << 20).data.decode()

    def started(self, id: str) -> int:
        wait_for(lambda: "up" in self.output(id), f"{id}: {self.events}")
        return wait_for(lambda: self.launcher.running()[id].pid) or 0

    def result(self, user: str, command: str) -> tuple[int | None, str]:
        id = self.run(user, command)
        return self.exit_of(id).code, self.output(id)

    def directory(self, user: str, job: str) -> Path:
        return self.machine.jobs / user / "live" / job / "n0"


@pytest.fixture
def lab(machine: Machine) -> Iterator[Lab]:
    lab = Lab(machine)
    yield lab
    lab.launcher.close(kill=True)
    wait_for(lambda: not machine.processes(), "processes of users are left")


# what a job is


def test_a_job_is_its_user_for_good_with_a_tmp_of_its_own(lab: Lab) -> None:
    ann = lab.machine.ann
    Path(f"/tmp/{lab.machine.name}").touch()
    try:
        code, output = lab.result(
            ann.pw_name,
            "id -u; id -G; grep -E 'NoNewPrivs|CapEff' /proc/self/status; ls -A /tmp /dev/shm;"
            " touch /tmp/mine && ls /tmp; ulimit -c; umask; stat -c '%U %a' $ONES_JOB_DIR",
        )
    finally:
        Path(f"/tmp/{lab.machine.name}").unlink()
    assert code == 0, output
    assert output.split() == [
        str(ann.pw_uid), str(ann.pw_gid), "CapEff:", "0" * 16, "NoNewPrivs:", "1",
        "/dev/shm:", "/tmp:", "mine", "0", "0027", ann.pw_name, "2750",
    ]  # fmt: skip


def test_a_job_reads_nothing_of_another_user_or_of_the_service(lab: Lab) -> None:
    """Files, environment, memory, sockets, checkpoints, the helper, and signals."""
    ann, bob = lab.machine.ann.pw_name, lab.machine.bob.pw_name
    token = lab.root / "admin.token"
    token.write_text("secret")
    token.chmod(0o644)  # the directory above keeps users out
    victim = lab.run(bob, "SECRET=hidden; export SECRET; mkdir -p -m 750 ~+/x 2>/dev/null;"
                          " echo up; sleep 1000")  # fmt: skip
    pid = lab.started(victim)
    theirs = lab.directory(bob, victim)
    connect = (
        "import socket, sys\n"
        "s = socket.socket(socket.AF_UNIX, getattr(socket, sys.argv[1])); s.connect(sys.argv[2])"
    )
    trace = "import ctypes, sys; sys.exit(ctypes.CDLL(None).ptrace(16, int(sys.argv[1]), 0, 0))"
    helper = lab.machine.process
    assert helper is not None
    attempts = [
        f"cat {token}",
        f"ls {lab.machine.jobs / bob}",
        f"cat {theirs}/{victim}/spec.json",
        f"ls {lab.machine.jobs / bob / 'checkpoints'}",
        f"cat /proc/{pid}/environ",
        f"cat /proc/{pid}/mem",
        f"ls /proc/{pid}/fd",
        f"ls /proc/{pid}/cwd/",
        f"ls /proc/{pid}/root/tmp/",
        f"cat /proc/{os.getpid()}/environ",
        f"kill -0 {pid}",
        f"kill -9 {os.getpid()}",
        f"kill -9 {helper.pid}",
        f"touch {lab.machine.jobs}/x",
        f"echo $$ > /sys/fs/cgroup/pids/{lab.machine.name}/cgroup.procs",
        f'/usr/bin/python3 -c "{connect}" SOCK_STREAM {theirs / "exec.sock"}',
        f'/usr/bin/python3 -c "{connect}" SOCK_SEQPACKET {lab.machine.socket}',
        f'/usr/bin/python3 -c "{trace}" {pid}',
    ]
    _, output = lab.result(ann, "; ".join(f"({do}) && echo done {do[:30]}" for do in attempts))
    assert "Permission denied" in output
    for word in ("done", "secret", "hidden"):
        assert word not in output
    assert is_alive(pid)


def test_only_the_devices_of_its_slots_can_be_opened(lab: Lab) -> None:
    assert lab.result(lab.machine.ann.pw_name, ": < /dev/null && : < /dev/urandom")[0] == 0
    other = next(
        Path(p) for p in ("/dev/loop-control", "/dev/fuse", "/dev/kmsg") if Path(p).exists()
    )
    code, output = lab.result(lab.machine.ann.pw_name, f": < {other}")
    assert code != 0
    assert "cannot open" in output


# what a job does not outlive

ESCAPE = """
import os, signal, sys, time
supervisor = int(open(os.environ["ONES_JOB_DIR"] + "/lock").read())
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/usr/bin/python3", ["x", "-c", "import time; time.sleep(1000)"], {})
    os._exit(0)
time.sleep(0.3)
print("up", flush=True)
os.kill(supervisor, signal.SIGKILL)
time.sleep(1000)
"""


def script(lab: Lab, text: str) -> str:
    path = lab.machine.root / f"{secrets.token_hex(4)}.py"
    path.write_text(text)
    return f"exec /usr/bin/python3 {path}"


def test_a_job_that_daemonises_and_kills_its_supervisor_leaves_nothing(lab: Lab) -> None:
    ann = lab.machine.ann
    id = lab.run(ann.pw_name, script(lab, ESCAPE))
    assert lab.exit_of(id).cause == "lost"
    lab.launcher.forget(id)
    wait_for(lambda: not lab.machine.processes(ann), "something outlives its job")


def test_a_job_that_stops_its_supervisor_is_killed_all_the_same(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ones.launchers.supervisor_client.OVERDUE_SECONDS", 1.0)
    freeze = "kill -STOP $(cat $ONES_JOB_DIR/lock); echo up > $ONES_JOB_DIR/said; sleep 1000"
    id = lab.run(lab.machine.ann.pw_name, freeze)
    wait_for((lab.directory(lab.machine.ann.pw_name, id) / "said").exists)
    lab.launcher.stop(id, 0.1)
    assert lab.exit_of(id).cause in ("lost", "not-started")
    wait_for(lambda: not lab.machine.processes(lab.machine.ann))


def test_bombs_hit_only_their_job(machine: Machine) -> None:
    lab = Lab(machine, JobLimits(memory_mb=256, processes=64))
    try:
        other = lab.run(machine.bob.pw_name, "echo up; sleep 1000")
        pid = lab.started(other)
        forks = lab.run(
            machine.ann.pw_name,
            script(lab, "import os, time\nfor _ in range(500):\n    if not os.fork():\n"
                        "        time.sleep(1000)\n"),
            slot=1,
        )  # fmt: skip
        assert lab.exit_of(forks).code == 1
        assert "BlockingIOError" in lab.output(forks)
        lab.launcher.forget(forks)
        wait_for(lambda: not machine.processes(machine.ann), "the bomb is left")
        memory = lab.run(
            machine.ann.pw_name, script(lab, "x = []\nwhile True: x.append(bytearray(1 << 24))"),
            slot=1,
        )  # fmt: skip
        exit = lab.exit_of(memory)
        assert exit.signal == signal.SIGKILL
        assert exit.describe() == (
            "killed: the job used more memory than it has on its slots (256 MB)"
        )
        assert is_alive(pid)
    finally:
        lab.launcher.close(kill=True)
    wait_for(lambda: not machine.processes(), "processes of users are left")


def test_jobs_go_on_without_launchd_and_a_restarted_one_knows_them(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = lab.machine
    id = lab.run(machine.ann.pw_name, "echo up; sleep 1000")
    pid = lab.started(id)
    machine.kill()
    assert is_alive(pid)
    with monkeypatch.context() as patch:
        patch.setattr("ones.launchers.launchd_client.RESTART_SECONDS", 0.0)
        reason = lab.launcher.check_user(machine.ann.pw_name)
    assert reason.startswith("ones-launchd does not answer")
    machine.start()
    lab.launcher.close(kill=False)
    lab.open()
    assert lab.launcher.check_user(machine.ann.pw_name) == ""
    assert is_alive(pid)
    lab.launcher.stop(id, 1.0)
    assert lab.exit_of(id).cause == "stopped"


# what is removed of ended jobs


def pruning(lab: Lab, job: str, output_days: float, checkpoint_days: float) -> list[str]:
    """What the service removes of this job, which has ended ten days ago."""
    assert isinstance(lab.launcher, SupportsUsers)
    keeping = Retention(output_days=output_days, checkpoint_days=checkpoint_days)
    found = Pruning(
        keeping, lab.root, str(lab.root / "none"), lambda: {job: 0.0}, lambda: 10 * DAY,
        users=lab.launcher,
    ).prune()  # fmt: skip
    return [Path(path).name for path in found]


def test_output_and_checkpoints_are_removed_as_their_user(lab: Lab) -> None:
    """A link in them leads nowhere, and what cannot be removed yet is not forgotten."""
    ann = lab.machine.ann
    precious = lab.machine.root / "precious"
    precious.mkdir()
    (precious / "of-root").touch()
    saves = (
        f"echo hello; ln -s {precious} $ONES_JOB_DIR/; mkdir -p $SAVED/deep; touch $SAVED/deep/x"
    )
    checkpoints = lab.machine.jobs / ann.pw_name / "checkpoints"
    id = lab.run(ann.pw_name, f"SAVED={checkpoints}/$(basename $ONES_RUN_DIR); {saves}")
    assert lab.exit_of(id).code == 0
    lab.launcher.forget(id)
    wait_for((lab.root / "ended" / id).is_file)
    output = lab.directory(ann.pw_name, id)
    assert lab.output(id) == "hello\n"

    assert pruning(lab, id, 11.0, 11.0) == []
    assert (output.is_dir(), (checkpoints / id).is_dir()) == (True, True)
    (checkpoints / id).chmod(0o500)  # as the user could: now nothing in it can be removed
    assert pruning(lab, id, 5.0, 5.0) == []
    assert (output.exists(), (checkpoints / id).is_dir()) == (False, True)
    (checkpoints / id).chmod(0o700)
    assert pruning(lab, id, 5.0, 11.0) == [], (
        "its checkpoints are kept, and with them the name of its user"
    )
    assert pruning(lab, id, 5.0, 5.0) == [id]
    assert not (checkpoints / id).exists()
    assert [path.name for path in precious.iterdir()] == ["of-root"]
    assert lab.output(id) == ""


def test_a_user_that_stops_the_removal_of_files_does_not_stop_the_service(lab: Lab) -> None:
    class Asked(LaunchdClient):
        """Its process never ends: it keeps the other end of the pipe."""

        asked: ClassVar[list[object]] = []
        kept: ClassVar[list[int]] = []

        def ask(self, request: Mapping[str, Any], *handles: int) -> dict[str, Any]:
            self.asked.append(request["do"])
            self.kept.extend(map(os.dup, handles))
            return {}

    client = Asked(lab.machine.socket)
    ann = lab.machine.ann
    user = JobUser(ann.pw_name, ann.pw_uid, str(lab.machine.jobs / ann.pw_name))
    try:
        with pytest.raises(LaunchdError, match="are not removed"):
            remove_as_user(client, user, "a-1", Path("/nowhere"), seconds=0.01)
    finally:
        os.close(client.kept[0])
    assert client.asked == ["start", "stop"]


# what the controller believes


def test_a_link_to_the_files_of_another_user_is_not_followed(lab: Lab) -> None:
    ann, bob = lab.machine.ann.pw_name, lab.machine.bob.pw_name
    victim = lab.run(bob, "echo up; sleep 1000")
    lab.started(victim)
    id = lab.run(ann, "echo mine; exit 0")
    lab.exit_of(id)
    mine = lab.directory(ann, id)
    shutil.rmtree(mine / id)
    (mine / id).symlink_to(lab.directory(bob, victim) / victim)
    assert lab.output(id) == ""
    assert lab.launcher.reports(id, id) == b""
    lab.launcher.close(kill=False)
    # the whole run directory: the service must not talk to bob's ones-exec for ann
    shutil.rmtree(mine)
    mine.symlink_to(lab.directory(bob, victim))
    lab.open()
    found = lab.launcher.running()
    assert found[victim].job == victim
    again = lab.run(ann, "id -un", f"{id}-2", job=id)
    assert lab.exit_of(again).cause in ("not-started", "lost")
    assert lab.launcher.running()[victim].alive
    assert lab.output(again, id) == ""
    mine.unlink()


def test_a_directory_named_like_a_launch_of_another_job_is_not_one(lab: Lab) -> None:
    ann, bob = lab.machine.ann.pw_name, lab.machine.bob.pw_name
    victim = lab.run(bob, "echo up; sleep 1000", "zz~1~n0.0", job="zz")
    wait_for(lambda: lab.launcher.running()[victim].pid)
    id = lab.run(
        ann, "mkdir $ONES_JOB_DIR/zz~1~n0.0; cp $ONES_RUN_DIR/spec.json $ONES_JOB_DIR/zz~1~n0.0"
    )
    lab.exit_of(id)
    lab.launcher.close(kill=False)
    lab.open()
    assert lab.launcher.running()[victim].job == "zz"


# requests


def exchange(machine: Machine, data: bytes, handles: tuple[int, ...] = ()) -> dict[str, object]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(60.0)
        sock.connect(str(machine.socket))
        socket.send_fds(sock, [data], list(handles))
        answer = sock.recv(1 << 16)
    return dict(json.loads(answer)) if answer else {}


def start(machine: Machine, **changes: object) -> dict[str, object]:
    request = {"do": "start", "user": machine.ann.pw_name, "job": "x", "argv": ["/bin/true"],
               "env": {}, "devices": [], "limits": {"processes": 16}}  # fmt: skip
    return {**request, **changes}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"user": "root"}, "system user"),
        ({"user": "daemon"}, "system user"),
        ({"user": "nobody"}, "system user"),
        ({"user": "no-such-user"}, "does not exist"),
        ({"user": "../root"}, "user"),
        ({"job": "../x"}, "job"),
        ({"job": ""}, "job"),
        ({"argv": []}, "argv"),
        ({"argv": ["true"]}, "argv"),
        ({"argv": ["/bin/true", "a\0b"]}, "argv"),
        ({"argv": ["/bin/true"] * 65}, "argv"),
        ({"env": {"A=B": "x"}}, "env"),
        ({"env": {"A": 1}}, "env"),
        ({"devices": ["/dev/kmsg"]}, "does not list it"),
        ({"devices": ["/dev/nvidia0/../kmsg"]}, "devices"),
        ({"devices": ["/dev/nvidia77"]}, "no such file"),
        ({"limits": {"memory_mb": -1}}, "limits"),
        ({"limits": {"memory_mb": True}}, "limits"),
        ({"limits": {"other": 1}}, "limits"),
        ({"extra": 1}, "fields"),
        ({"do": "exec"}, "unknown request"),
        ({"do": "__init__"}, "unknown request"),
        ({}, "one pipe"),
    ],
)
def test_a_request_is_refused_with_the_reason(
    change: dict[str, object], why: str, machine: Machine
) -> None:
    answer = exchange(machine, json.dumps(start(machine, **change)).encode())
    assert answer["ok"] is False
    assert why in str(answer["error"]).lower()


def test_a_user_that_root_does_not_list_is_refused_until_root_lists_it(machine: Machine) -> None:
    client = machine.client()
    try:
        with pytest.raises(LaunchdError, match="is not listed"):
            client.resolve(machine.cy.pw_name)
        machine.config["users"] += f" @{machine.cy.pw_name}"
        machine.write_config()
        assert client.resolve(machine.cy.pw_name).uid == machine.cy.pw_uid
    finally:
        client.close()


def test_only_the_service_may_connect(machine: Machine) -> None:
    connect = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET);"
        ' s.connect(sys.argv[1]); s.send(b\'{"do": "hello"}\'); print(s.recv(100))'
    )
    machine.socket.chmod(0o666)  # even then
    try:
        done = subprocess.run(
            ["/usr/bin/python3", "-c", connect, str(machine.socket)],
            user=machine.ann.pw_uid, group=machine.ann.pw_gid, extra_groups=[],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    finally:
        machine.socket.chmod(0o600)
    assert "ok" not in done.stdout
    assert f"refused connection uid={machine.ann.pw_uid}" in machine.log.read_text()


@pytest.mark.parametrize(
    "data",
    [b"x" * (launchd.MAX_MESSAGE + 1), b"[" * 60_000, b"{}", b"null", b'{"do": []}', b"\xff\xfe",
     b'{"do": "hello", "do": "hello"}', b'{"do": "stop", "job": "a", "job": "b"}',
     b'{"do": "watch", "job": NaN}'],
)  # fmt: skip
def test_nonsense_is_refused(data: bytes, machine: Machine) -> None:
    assert exchange(machine, data)["ok"] is False


@given(
    st.one_of(
        st.binary(max_size=300),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
            lambda inner: (
                st.lists(inner, max_size=4)
                | st.dictionaries(
                    st.sampled_from(["do", "user", "job", "argv", "env", "devices", "limits", "x"]),
                    st.one_of(inner, st.sampled_from(["start", "stop", "watch", "change", "root"])),
                    max_size=7,
                )
            ),
            max_leaves=12,
        ).map(lambda value: json.dumps(value).encode(errors="surrogatepass")),
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_request_is_refused_or_exactly_as_documented(data: bytes) -> None:
    try:
        request = launchd.parse(data)
    except launchd.RefusedError:
        return
    assert set(request) == launchd.FIELDS[request["do"]] | {"do"}
    assert request.get("user") != "root" or request["do"] in ("resolve", "start")
    assert all(launchd._CHECKS[name](request[name]) for name in launchd.FIELDS[request["do"]])


def test_a_config_or_program_that_others_can_change_is_refused(machine: Machine) -> None:
    path = machine.write_config()
    for mode, owner in ((0o666, 0), (0o644, machine.ann.pw_uid)):
        path.chmod(mode)
        os.chown(path, owner, 0)
        with pytest.raises(launchd.RefusedError, match="other than root"):
            launchd.Config(str(path))
    os.chown(path, 0, 0)
    path.chmod(0o644)
    link = machine.root / "link.conf"
    link.symlink_to(path)
    with pytest.raises(launchd.RefusedError, match="is a link"):
        launchd.Config(str(link))
    program = ["/usr/bin/python3", str(machine.program), str(path)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "error: must be run with: /usr/bin/python3 -I\n")


HOLDS = """
import ctypes, os, sys, threading, time
def hold():
    assert ctypes.CDLL(None).unshare(0x400) == 0  # CLONE_FILES: files of its own
    os.open(sys.argv[1], os.O_RDWR)
    print("has it", flush=True)
    time.sleep(1000)
threading.Thread(target=hold).start()
"""
ENDS = 'ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)'


@pytest.mark.parametrize("how", ["plainly", "in-a-thread", "without-its-first-thread"])
def test_a_change_takes_a_device_from_processes_that_have_it_open(
    how: str, machine: Machine
) -> None:
    """A GPU is given to another job only when no process of the old one can use it any more."""
    gpus = [machine.root / f"gpu{index}" for index in range(2)]
    for path, like in zip(gpus, ("/dev/fuse", "/dev/loop-control"), strict=True):
        if not Path(like).exists():
            pytest.skip(f"needs {like}, as a device that every user can open")
        os.mknod(path, 0o020000, os.stat(like).st_rdev)
        path.chmod(0o666)
    machine.config["devices"] = f"{machine.root}/gpu*"
    machine.write_config()
    output, end = os.pipe()
    script = machine.root / "holds.py"
    script.write_text(HOLDS + (ENDS if how == "without-its-first-thread" else ""))
    takes = f"exec 3<{gpus[0]} && echo has it; sleep 1000"
    if how != "plainly":
        takes = f"(exec sleep 1002) & exec /usr/bin/python3 {script} {gpus[0]}"
    hold = f"(exec sleep 1001) & {takes}"
    first = start(machine, job="gpus", argv=["/bin/sh", "-c", hold], devices=[str(gpus[0])])
    try:
        answer = exchange(machine, json.dumps(first).encode(), (end,))
        assert answer["ok"] is True, answer
        os.close(end)
        assert os.read(output, 100) == b"has it\n"
        pid = answer["pid"]
        assert isinstance(pid, int)
        client = machine.client()
        wait_for(lambda: client.ask({"do": "watch", "job": "gpus"})["processes"] >= 3)
        change = {"do": "change", "job": "gpus", "devices": [str(gpus[1])], "limits": {}}
        killed = client.ask(change)["killed"]
        assert pid in killed
        wait_for(lambda: not is_alive(pid))
        assert client.ask({"do": "watch", "job": "gpus"})["processes"] >= 1, "others go on"
        wait_for(lambda: client.ask({"do": "stop", "job": "gpus"})["empty"])
        client.close()
    finally:
        os.close(output)
        del machine.config["devices"]
        machine.write_config()
        for path in gpus:
            path.unlink()
    wait_for(lambda: not machine.processes(), "processes of users are left")


class Double(launchd.Cgroup):
    """A job that hands its device to a new process whenever one is killed, `times` times."""

    def __init__(self, times: int) -> None:
        self.left, self.killed, self.is_killed = times, list[int](), False

    def change(self, job: str, limits: launchd.Limits, devices: launchd.Devices) -> None:
        pass

    def exists(self, job: str) -> bool:
        return True

    def pids(self, job: str) -> list[int]:
        return [self.left] if self.left else []

    def kill_some(self, job: str, pids: list[int]) -> None:
        self.killed += pids
        self.left -= 1

    def kill(self, job: str) -> bool:
        self.is_killed = True
        return True


@pytest.mark.parametrize(("seconds", "ends"), [(1000.0, False), (-1.0, True)])
def test_a_device_that_goes_from_process_to_process_is_followed(
    seconds: float, ends: bool, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And if that takes too long, the whole job is killed."""
    monkeypatch.setattr(launchd, "holders", lambda pids, devices: pids)
    monkeypatch.setattr(launchd, "own_numbers", lambda config: {(195, 0)})
    monkeypatch.setattr(launchd, "KILL_SECONDS", seconds)
    daemon = launchd.Launchd(str(machine.write_config()))
    daemon.cgroup = double = Double(3)
    killed = daemon.do_change("x", [], {}, [])["killed"]
    assert double.is_killed is ends
    assert (killed, double.killed) == (([3], []) if ends else ([3, 2, 1], [3, 2, 1]))


def run_alone(machine: Machine, job: str, argv: list[str], **more: object) -> str:
    """The output of a process that ones-launchd starts; the job is left."""
    output, end = os.pipe()
    with os.fdopen(output, "rb") as file:
        request = start(machine, job=job, argv=argv, **more)
        answer = exchange(machine, json.dumps(request).encode(), (end,))
        os.close(end)
        assert answer["ok"] is True, answer
        return file.readline().decode()


def test_a_job_that_uses_more_than_its_new_memory_loses_its_devices_all_the_same(
    machine: Machine,
) -> None:
    code = "x = bytearray(200 << 20); print('up', flush=True); import time; time.sleep(1000)"
    argv = ["/usr/bin/python3", "-c", code]
    assert run_alone(machine, "fat", argv, limits={"memory_mb": 512}) == "up\n"
    with closing(machine.client()) as client:
        client.ask({"do": "change", "job": "fat", "devices": [], "limits": {"memory_mb": 64}})
        assert client.ask({"do": "watch", "job": "fat"})["memory"] > 200 << 20
        memory = Path(f"/sys/fs/cgroup/memory/{machine.name}/fat")
        assert (memory / "memory.swappiness").read_text() == "0\n"
        assert (memory / "memory.limit_in_bytes").read_text() == f"{512 << 20}\n"
        assert "is not set" in machine.log.read_text()
        wait_for(lambda: client.ask({"do": "stop", "job": "fat"})["empty"])


def test_each_job_has_a_session_keyring_of_its_own(machine: Machine) -> None:
    """A keyring that jobs share would show the keys of one user to another."""
    numbers = {"x86_64": 250, "aarch64": 219}
    if os.uname().machine not in numbers:
        pytest.skip("keyctl has another number here")
    machine.kill()
    ctypes.CDLL(None).syscall(numbers[os.uname().machine], 1, None)  # one for ones-launchd to have
    machine.start()
    code = (
        "import ctypes; print(ctypes.CDLL(None).syscall("
        f"{numbers[os.uname().machine]}, 0, -3, 1))"  # KEYCTL_GET_KEYRING_ID, of the session
    )
    argv = ["/usr/bin/python3", "-c", code]
    found = [
        int(run_alone(machine, f"keys-{user.pw_name}", argv, user=user.pw_name))
        for user in (machine.ann, machine.bob, machine.ann)
    ]
    if found == [-1, -1, -1]:
        pytest.skip("keyctl is not allowed here")
    mine = subprocess.run(["/usr/bin/python3", "-c", code], capture_output=True, check=True)
    assert len({*found, int(mine.stdout)}) == 4


def test_a_child_that_cannot_become_its_user_never_goes_on_as_root(machine: Machine) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            launchd.run_as(
                launchd.Config(str(machine.write_config())), machine.ann, ["/bin/true"], {},
                output=-1, wait=-1, problem=-1,
            )  # fmt: skip
        finally:
            os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


def test_a_wrong_config_starts_nothing_and_stops_everything(machine: Machine) -> None:
    assert run_alone(machine, "goes-on", ["/bin/sh", "-c", "echo up; sleep 1000"]) == "up\n"
    path = machine.write_config()
    try:
        for wrong in ("[launchd]\nprivate_tmp = perhaps\n", "[launchd]\ntree = ../x\n", "["):
            path.write_text(wrong)
            request = start(machine, job="other")
            assert exchange(machine, json.dumps(request).encode())["ok"] is False
        with closing(machine.client()) as client:
            assert client.ask({"do": "watch", "job": "goes-on"})["processes"] > 0
            wait_for(lambda: client.ask({"do": "stop", "job": "goes-on"})["empty"])
    finally:
        machine.write_config()


def test_a_request_cannot_add_lines_to_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    launchd.say("refused a\nstarted job=x\r\u2028user=root")
    assert capsys.readouterr().err.splitlines() == ["refused a started job=x user=root"]


def test_old_output_of_a_job_is_dropped_as_its_user(machine: Machine) -> None:
    """The service may read these files only; the job's ones-exec keeps them small."""
    lab, ann = Lab(machine, JobLimits(output_mb=10)), machine.ann.pw_name
    try:
        job = f"j{secrets.token_hex(4)}"
        id = lab.run(ann, "head -c 20000000 /dev/zero; echo up", job=job)
        assert lab.exit_of(id).code == 0
        wait_for(lambda: lab.launcher.logs(job, id, 0, 1).offset > 0, "nothing was dropped")
        kept = lab.launcher.logs(job, id, -3, 3)
        assert (kept.data, kept.end) == (b"up\n", 20_000_003)
        assert kept.end - lab.launcher.logs(job, id, 0, 1).offset <= 10_000_000
    finally:
        lab.launcher.close(kill=True)
