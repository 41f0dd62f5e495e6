"""A preloaded process that forks workers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = str(tmp_path_factory.mktemp("zygote") / "socket")
    process = subprocess.Popen([sys.executable, "-m", "ones.train.zygote", path])
    while not os.path.exists(path):
        assert process.poll() is None
        time.sleep(0.05)
    yield path
    process.terminate()
    assert process.wait(60) == 0
    assert not os.path.exists(path)


class Worker:
    def __init__(self, zygote: str, tmp_path: Path, argv: list[str], **env: str) -> None:
        self.output = tmp_path / "output"
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(zygote)
        request = {"argv": argv, "cwd": str(tmp_path), "env": {**os.environ, **env}}
        with self.output.open("wb") as out:
            socket.send_fds(
                self.socket,
                [json.dumps(request).encode() + b"\n"],
                [out.fileno(), out.fileno()],
            )
        self.lines = self.socket.makefile()

    def answer(self) -> dict[str, object]:
        answer: dict[str, object] = json.loads(self.lines.readline())
        return answer

    def end(self) -> str:
        self.lines.close()
        self.socket.close()
        return self.output.read_text()


def script(tmp_path: Path, text: str) -> str:
    (tmp_path / "script.py").write_text(text)
    return "script.py"


def test_a_worker_is_a_script_of_its_own(zygote: str, tmp_path: Path) -> None:
    text = """
import atexit, os, sys, torch
atexit.register(lambda: print("at exit"))
print(__name__, sys.argv, os.environ["COLOUR"], __file__)
print(os.getsid(0) == os.getpid() == os.getpgid(0), torch.get_num_threads(), sys.stdin.read() == "")
sys.exit(3)
"""
    argv = [script(tmp_path, text), "--fast"]
    worker = Worker(zygote, tmp_path, argv, COLOUR="red", OMP_NUM_THREADS="1")
    assert isinstance(worker.answer()["pid"], int)
    assert worker.answer() == {"exit": 3}
    assert worker.end().splitlines() == [
        "__main__ ['script.py', '--fast'] red script.py",
        "True 1 True",
        "at exit",
    ]


def test_an_exception_is_shown_and_fails_the_worker(zygote: str, tmp_path: Path) -> None:
    worker = Worker(zygote, tmp_path, [script(tmp_path, "raise ValueError('so it is')")])
    worker.answer()
    assert worker.answer() == {"exit": 1}
    assert worker.end().endswith("ValueError: so it is\n")


def test_a_killed_worker_is_told(zygote: str, tmp_path: Path) -> None:
    worker = Worker(zygote, tmp_path, [script(tmp_path, "import time; time.sleep(600)")])
    pid = worker.answer()["pid"]
    assert isinstance(pid, int)
    os.kill(pid, signal.SIGKILL)
    assert worker.answer() == {"signal": 9}
    worker.end()


def test_a_worker_is_quick_to_start(zygote: str, tmp_path: Path) -> None:
    """No import is left to be done: what costs seconds in a fresh interpreter."""
    text = """
import sys
before = set(sys.modules)
import torch, ones
net = torch.nn.Linear(2, 2)
opt = torch.optim.AdamW(net.parameters())
net(torch.zeros(1, 2)).sum().backward(); opt.step()
print(sum(m.startswith("torch.") for m in set(sys.modules) - before) < 20)
"""
    worker = Worker(zygote, tmp_path, [script(tmp_path, text)])
    worker.answer()
    assert worker.answer() == {"exit": 0}
    assert worker.end() == "True\n"


def test_nonsense_is_refused(zygote: str, tmp_path: Path) -> None:
    worker = Worker(zygote, tmp_path, [])
    assert "two file descriptors" in str(worker.answer()["error"])
    worker.end()
