"""A connection ends with the worker that has it, whatever children the worker has."""

from __future__ import annotations

import subprocess
import sys

import pytest

# a process of its own: it forks, and pytest has threads
SCRIPT = """
import contextlib, multiprocessing, socket, sys, time
from ones.train.connection_tracking import track_connections

how = sys.argv[1]
fork = multiprocessing.get_context("fork")
child = fork.Process(target=time.sleep, args=(600,), daemon=True)
listener = socket.create_server(("127.0.0.1", 0))
others = socket.create_connection(listener.getsockname())  # of the script: children may have it
there, _ = listener.accept()
with track_connections() if how != "plain" else contextlib.nullcontext():
    mine = socket.create_connection(listener.getsockname())
    if how == "forked meanwhile":
        child.start()
if how != "forked meanwhile":
    child.start()
peer, _ = listener.accept()
mine.close()
peer.settimeout(30 if how != "plain" else 0.5)
try:
    print("ended" if peer.recv(1) == b"" else "data")
except TimeoutError:
    print("held")
others.close()
there.settimeout(0.5)
try:
    print("ended" if there.recv(1) == b"" else "data")
except TimeoutError:
    print("held")
child.kill()
child.join()
"""


@pytest.mark.parametrize(
    ("how", "seen"),
    [
        ("plain", ["held", "held"]),  # why this is needed
        ("forked afterwards", ["ended", "held"]),
        ("forked meanwhile", ["ended", "held"]),
    ],
)
def test_a_fork_does_not_keep_our_connections(how: str, seen: list[str]) -> None:
    words = [sys.executable, "-c", SCRIPT, how]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert ran.stdout.split() == seen, ran.stderr
