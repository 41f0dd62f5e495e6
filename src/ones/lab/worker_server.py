"""The HTTP server to which the workers of `ones run` report. Stdlib only."""

from __future__ import annotations

import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import SplitResult, urlsplit

from ones.control.limits import LimitError
from ones.control.live.worker_exchange import (
    PATH,
    AdmittedWorker,
    RefusedRequestError,
    WorkerExchange,
    WorkerHost,
    error_body,
    wait_seconds,
)
from ones.wire.messages import Order

_LARGEST = 8 << 20


class WorkerServer:
    """HTTP server with one thread per connection; a worker has two connections."""

    def __init__(self, host: WorkerHost) -> None:
        self._host, self._exchange = host, WorkerExchange(host)
        self._is_closed = False
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                server._respond(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # the worker died while it sent a request or got an answer

        self._http = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def open(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._is_closed = True
        self._http.shutdown()
        self._http.server_close()

    def _respond(self, request: BaseHTTPRequestHandler) -> None:
        size = int(request.headers.get("Content-Length", 0))
        body = request.rfile.read(min(size, _LARGEST))
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        try:
            status, answer = 200, self._answer(urlsplit(request.path), token, body)
        except RefusedRequestError as problem:
            status, answer = problem.status, error_body(problem.detail)
        except LimitError as problem:
            status, answer = problem.status, error_body(str(problem))
        if self._is_closed:  # also close connections that were opened before the run ended
            request.close_connection = True
            return
        request.send_response(status)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(answer)))
        request.end_headers()
        request.wfile.write(answer)

    def _answer(self, where: SplitResult, token: str, body: bytes) -> bytes:
        if where.path != PATH:
            raise RefusedRequestError(404, f"{where.path} is not here")
        exchange, wait = self._exchange, wait_seconds(where.query)
        admitted = exchange.admit(body, exchange.job_of(token))
        if admitted.message.reports:
            safe: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
            self._host.report(admitted.message, safe.put)
            if (problem := safe.get()) is not None:
                raise problem
        order = exchange.unseen(admitted)
        if order is None and not admitted.message.reports and wait > 0:
            order = self._wait_for_order(admitted, wait)
            exchange.note_call(admitted.worker)
        return exchange.answer(admitted, order)

    def _wait_for_order(self, admitted: AdmittedWorker, seconds: float) -> Order | None:
        launch, seen = admitted.worker.launch, admitted.message.seen
        arrived, mailbox = threading.Event(), self._host.engine.live.mailbox
        order = mailbox.wait(launch, seen, arrived.set)
        if order is None:
            arrived.wait(seconds)
            order = mailbox.unseen(launch, seen)
        return order
