"""Runs the commands of docs/guides/lab.md as root, with directories of the system of its own.

Started with `unshare --mount`: users, programs and files that it makes vanish with it. systemd is
replaced by a small program that starts what a unit names. Prints the output of each block as JSON.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

FIRST_UID = 20_000 + os.getpid() % 20_000 * 4
SYSTEMCTL = """#!/usr/bin/python3
import configparser, os, pwd, subprocess, sys
if sys.argv[1] != "start": sys.exit(0)
name = sys.argv[2]
unit = configparser.RawConfigParser(strict=False)
unit.read(f"/etc/systemd/system/{name}.service")
service = dict(unit["Service"])
for other in unit["Unit"].get("requires", "").split():
    subprocess.run([sys.argv[0], "start", other.removesuffix(".service")], check=True)
user = pwd.getpwnam(service.get("user", "root"))
env = {**os.environ, "ONES_SERVICE_SLOTS": "2", "ONES_SERVICE_PORT": "0", "HOME": user.pw_dir}
if "environment" in service:
    env.update(pair.split("=", 1) for pair in service["environment"].split())
log = open(f"/run/{name}.log", "wb")
started = subprocess.Popen(service["execstart"].split(), cwd=service.get("workingdirectory", "/"),
    env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
    user=user.pw_uid, group=user.pw_gid, extra_groups=[])
open("/run/pids", "a").write(f"{started.pid}\\n")
"""


def main(guide: str, python: str, path: str) -> None:
    os.environ.pop("XDG_STATE_HOME", None)
    make_machine(python, path)
    blocks = re.findall(r"```sh\n# as (\w+)\n(.*?)```", Path(guide).read_text(), re.DOTALL)
    results = []
    try:
        for user, commands in blocks:
            for command in commands.splitlines():
                if "python3 -m venv" in command or "/pip " in command:
                    continue  # the test's own environment stands in for it
                results.append(run(user, command))
                if command.startswith("systemctl start"):
                    wait_for_service()
    finally:
        for pid in Path("/run/pids").read_text().split():
            with suppress(OSError):
                os.kill(int(pid), signal.SIGKILL)
        for tree in Path("/sys/fs/cgroup").glob("*/ones"):
            for directory in (*tree.glob("*/"), tree):
                with suppress(OSError):
                    directory.rmdir()
    print(json.dumps(results))


def make_machine(python: str, path: str) -> None:
    private = Path(tempfile.mkdtemp(prefix="ones-guide-"))
    shutil.copytree("/etc", private / "etc", symlinks=True, dirs_exist_ok=True)
    mount("--bind", str(private / "etc"), "/etc")
    for directory in ("/usr/local/libexec", "/opt", "/run", "/var/lib/ones"):
        Path(directory).mkdir(parents=True, exist_ok=True)
        mount("-t", "tmpfs", "-o", "mode=0755", "tmpfs", directory)
    for number, name in enumerate(("ann", "bob", "cy")):
        subprocess.run(
            ["useradd", "-u", str(FIRST_UID + number), "-M", "-d", "/", name], check=True
        )
    Path("/run/pids").touch()
    bin_ = Path("/opt/ones/bin")
    bin_.mkdir(parents=True)
    program(bin_ / "ones", f'#!/bin/sh\nPYTHONPATH={path} exec {python} -m ones "$@"\n')
    program(bin_ / "systemctl", SYSTEMCTL)


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def run(user: str, command: str) -> dict[str, object]:
    if user != "root":
        command = f"exec setpriv --reuid {user} --regid {user} --clear-groups -- {command}"
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, cwd="/run", check=False,
        env={"PATH": "/opt/ones/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/nonexistent"},
    )  # fmt: skip
    # the unit names the `ones` of the interpreter; here it is the program above
    unit = Path("/etc/systemd/system/ones.service")
    if unit.exists():
        unit.write_text(re.sub(r"ExecStart=\S+", "ExecStart=/opt/ones/bin/ones", unit.read_text()))
    out, err = done.stdout[-4000:], done.stderr[-4000:]
    return {"user": user, "command": command, "code": done.returncode, "out": out, "err": err}


def wait_for_service() -> None:
    deadline = time.monotonic() + 100
    while not Path("/var/lib/ones/service/controller.json").exists():
        if time.monotonic() > deadline:
            for log in Path("/run").glob("*.log"):
                sys.stderr.write(f"{log}: {log.read_text()}\n")
            raise SystemExit("the service did not start")
        time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
