"""What ones-launchd refuses, and what a job can and cannot do: real processes of real users."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ones.exec import Exit, launchd
from ones.launchers import Exited, Launch, LauncherEvent
from ones.launchers.launchd_client import JobLimits, LaunchdError
from tests.processes import is_alive, wait_for
from tests.unix_users import Machine, machine, monkeypatch_module

__all__ = ["machine", "monkeypatch_module"]


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


def test_jobs_go_on_without_launchd_and_a_restarted_one_knows_them(lab: Lab) -> None:
    machine = lab.machine
    id = lab.run(machine.ann.pw_name, "echo up; sleep 1000")
    pid = lab.started(id)
    machine.kill()
    assert is_alive(pid)
    assert lab.launcher.check_user(machine.ann.pw_name).startswith("ones-launchd does not answer")
    machine.start()
    lab.launcher.close(kill=False)
    lab.open()
    assert lab.launcher.check_user(machine.ann.pw_name) == ""
    assert is_alive(pid)
    lab.launcher.stop(id, 1.0)
    assert lab.exit_of(id).cause == "stopped"


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


def test_a_change_takes_a_device_from_processes_that_have_it_open(machine: Machine) -> None:
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
    hold = f"(exec sleep 1001) & exec 3<{gpus[0]} && echo has it; sleep 1000"
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
    wait_for(lambda: not machine.processes(), f"left {time.time()}")
