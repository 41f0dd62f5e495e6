"""docs/guides/lab.md, command by command: root, the service's user and two users."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

import ones
from tests.unix_users import python_for_users, why_not

GUIDE = Path("docs/guides/lab.md").absolute()


@pytest.mark.slow
def test_every_command_of_the_guide_does_what_it_says() -> None:
    if reason := why_not():
        pytest.skip(reason)
    if subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("needs a mount namespace")
    if any(Path("/sys/fs/cgroup").glob("*/ones")):
        pytest.skip("ones-launchd is in use on this machine")
    root = Path(tempfile.mkdtemp(prefix="ones-guide-lib-", dir="/var/lib"))
    try:
        root.chmod(0o755)
        shutil.copytree(Path(ones.__file__).parent, root / "ones")  # with __pycache__: faster
        path = os.pathsep.join([str(root), *(p for p in sys.path if "site-p" in p)])
        done = subprocess.run(
            ["unshare", "--mount", sys.executable, str(Path(__file__).with_name("run_guide.py")),
             str(GUIDE), python_for_users()[0], path],
            env={**os.environ, "TMPDIR": str(root)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
    finally:
        shutil.rmtree(root)
        with suppress(OSError):  # the empty place of a mount that is gone
            Path("/var/lib/ones").rmdir()
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert all(r["code"] == 0 for r in results), [r for r in results if r["code"]]
    said = {(r["user"], r["command"].rpartition("ones/bin/ones ")[2]): r["out"] for r in results}
    hello = "submit --name hello --follow -- id -un"
    assert sorted(said["ann", hello].splitlines()) == ["ann", "hello-1"]
    assert sorted(said["bob", hello].splitlines()) == ["bob", "hello-2"]
    assert "hello-1" in said["ann", "ps --all"]
    assert said["bob", "logs hello-2"] == "bob\n"
