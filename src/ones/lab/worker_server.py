"""The controller's end of the wire, for one job: reports in, orders out. Stdlib only."""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from ones.wire import CodecError, Orders, Reports, pack, unpack
from ones.wire.messages import Order, Report

_LONGEST_WAIT = 30.0
_LARGEST = 8 << 20


class WorkerServer:
    """Keeps, for each worker, the number of its last report and the order it is to have.

    `on_report` is called once for each report, in order, one at a time. `has_place` says who
    is still of the job: all others are told to go (409).
    """

    def __init__(
        self,
        token: str,
        *,
        on_report: Callable[[Reports, Report], None],
        has_place: Callable[[str], bool],
    ) -> None:
        self._token = token
        self._on_report, self._has_place = on_report, has_place
        self._changed = threading.Condition(threading.RLock())
        self._received: dict[str, int] = {}
        self._orders: dict[str, Order] = {}
        self._store = ""
        self._is_closed = False
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                server._answer(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # a worker that died in the middle of a word

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

    def order(self, worker: str, order: Order) -> None:
        with self._changed:
            self._orders[worker] = order
            self._changed.notify_all()

    def forget(self, worker: str) -> None:
        """Another process takes this worker's place: it counts its reports from 1 again."""
        with self._changed:
            self._received.pop(worker, None)
            self._orders.pop(worker, None)

    def wake(self) -> None:
        """Who has a place has changed."""
        with self._changed:
            self._changed.notify_all()

    def store_is(self, address: str) -> None:
        with self._changed:
            self._store = address

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        size = int(request.headers.get("Content-Length", 0))
        body = request.rfile.read(min(size, _LARGEST))
        if self._is_closed:  # lines that were open before hear no answer, too
            request.close_connection = True
            return
        status, answer = self._serve(request, body)
        request.send_response(status)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(answer)))
        request.end_headers()
        request.wfile.write(answer)

    def _serve(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
        where = urlsplit(request.path)
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if where.path != "/worker/reports":
            return 404, b"{}"
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            return 401, b"{}"
        try:
            message = unpack(body)
            wait = min(float(parse_qs(where.query).get("wait", ["0"])[0]), _LONGEST_WAIT)
        except (CodecError, ValueError):
            return 422, b"{}"
        if not isinstance(message, Reports):
            return 422, b"{}"
        with self._changed:
            if not self._has_place(message.worker):
                return 409, b"{}"
            received = self._received.setdefault(message.worker, 0)
            for number, report in enumerate(message.reports, message.first):
                if number > received:
                    self._received[message.worker] = number
                    self._on_report(message, report)
            if wait and not message.reports:
                self._changed.wait_for(lambda: self._is_news(message), wait)
                if not self._has_place(message.worker):
                    return 409, b"{}"
            order = self._orders.get(message.worker)
            fresh = order if order is not None and order.plan > message.seen else None
            acknowledged = self._received.get(message.worker, 0)
            return 200, pack(Orders(acknowledged=acknowledged, order=fresh, store=self._store))

    def _is_news(self, message: Reports) -> bool:
        order = self._orders.get(message.worker)
        gone = not self._has_place(message.worker)
        return gone or (order is not None and order.plan > message.seen)
