"""The training process of these tests, `paced.py`, outlives its controller."""

from __future__ import annotations

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from ones.wire import Orders, Reports, pack, unpack
from ones.wire.environment import WorkerEnvironment
from ones.wire.messages import Member, Report, Switch
from tests.control.world import ENV, PACED
from tests.cut_answers import CuttingProxy
from tests.processes import PATIENCE

MEMBER = Member(worker="n/0", batch=10, micro_steps=1)
SWITCH = Switch(plan=1, members=(MEMBER,), batch=10, base_batch=10)


class Controller(ThreadingHTTPServer):
    """Acknowledges every report and gives the same order until the worker has seen it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: dict[int, Report] = {}  # by number: a report may come again

    def answer(self, body: bytes) -> bytes:
        message = unpack(body)
        assert isinstance(message, Reports)
        self.received.update(enumerate(message.reports, message.first))
        order = SWITCH if message.seen < SWITCH.plan else None
        return pack(Orders(acknowledged=len(self.received), order=order))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        assert isinstance(self.server, Controller)
        answer = self.server.answer(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_it_trains_on_when_the_controller_dies_in_the_middle_of_an_answer(tmp_path: Path) -> None:
    server = Controller()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    with CuttingProxy(url) as proxy:
        worker = WorkerEnvironment(
            controller=proxy.url, token="t", job="j", worker="n/0", plan=1, run_dir="", job_dir="",
            checkpoints=str(tmp_path),
        )  # fmt: skip
        done = subprocess.run(
            [sys.executable, PACED, "2", "0.01"], env=ENV | worker.to_env(), capture_output=True,
            text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
    server.shutdown()
    server.server_close()
    assert (done.returncode, done.stdout) == (0, "epoch 1\nepoch 2\ndone\n"), done.stderr
    assert done.stderr == ""
    names = [type(report).__name__ for report in server.received.values()]
    assert names == ["Joined", "Ready", "Epoch", "Epoch", "Leaving"]
    assert len(proxy.cut) >= len(names), "each answer was cut off once"
