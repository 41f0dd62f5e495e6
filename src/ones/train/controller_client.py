"""The worker's connection to the controller: two threads. Training never waits for them.

Reports are numbered and kept until they are acknowledged; a controller that was down gets them when
it is back. Reports not acknowledged when the worker ends are written to its run directory
(`unsent_reports`). Orders arrive by long-poll. Stdlib only.
"""

from __future__ import annotations

import atexit
import contextlib
import http.client
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from ones.train import logs, unsent_reports
from ones.wire import CodecError, Orders, Reports, pack, unpack
from ones.wire.backoff import Backoff
from ones.wire.environment import WorkerEnvironment
from ones.wire.messages import Order, Report, Steps

_LONG_POLL_SECONDS = 20
_MAX_BATCH = 500  # reports in one message
_MAX_QUEUE = 100_000  # reports while the controller is unreachable; newer ones are dropped
_CLOSE_SECONDS = 2.0  # wait at the end, if unsent reports can be written to disk
_BACKOFF_SECONDS = (0.1, 5.0)  # first and longest pause between two attempts

_log = logs.logger(__name__)


@dataclass(frozen=True, slots=True)
class _Numbered:
    number: int
    generation: tuple[int, int]
    report: Report


class ControllerClient:
    """Sends reports; passes answers on to `on_order`, `on_store` and `on_fenced`."""

    def __init__(
        self,
        environment: WorkerEnvironment,
        *,
        on_order: Callable[[Order], None],
        on_fenced: Callable[[], None],
        on_store: Callable[[str], None],
        first_number: int = 1,
    ) -> None:
        self._environment = environment
        self._on_order, self._on_fenced, self._on_store = on_order, on_fenced, on_store
        self.generation = (environment.plan, environment.incarnation)
        self._queue: deque[_Numbered] = deque()
        self._next_number = first_number
        self._last_order = 0  # its plan
        self._changed = threading.Condition()
        self._stopped = False
        self._warned = False
        self._send_singly_until = 0  # reports up to this number are sent one by one

    def start(self, *, orders: bool = True) -> None:
        """`orders`: also wait for orders."""
        atexit.register(self._write_unsent)
        threads = {"ones-reports": self._next_batch} | ({"ones-orders": None} if orders else {})
        for name, next_batch in threads.items():
            threading.Thread(target=self._run, args=(next_batch,), name=name, daemon=True).start()

    def report(self, report: Report) -> None:
        """Queues a report."""
        with self._changed:
            last = self._queue[-1] if self._queue else None
            # counts since the start of the epoch: a newer report replaces an unsent older one
            replaces = isinstance(report, Steps) and last and isinstance(last.report, Steps)
            if last and replaces and len(self._queue) > 1:
                self._queue[-1] = _Numbered(last.number, self.generation, report)
            elif len(self._queue) < _MAX_QUEUE:
                self._queue.append(_Numbered(self._next_number, self.generation, report))
                self._next_number += 1
            self._changed.notify_all()

    def flush(self, seconds: float) -> bool:
        """Waits until all reports are acknowledged; False after `seconds`."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._queue and not self._stopped:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def stop(self) -> None:
        atexit.unregister(self._write_unsent)
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def close(self, seconds: float) -> None:
        """Stops when all reports are acknowledged or written to the run directory."""
        first = min(_CLOSE_SECONDS, seconds)
        if not self.flush(first):
            written = self._write_unsent()
            if self.flush(0.0 if written else seconds - first) and written:
                unsent_reports.remove(self._environment.run_dir)
        self.stop()

    def _write_unsent(self) -> bool:
        """Writes unacknowledged reports to the run directory; False if that failed."""
        with self._changed:
            messages = list(self._messages())
        if not messages or not self._environment.run_dir:
            return not messages
        try:
            unsent_reports.write(self._environment.run_dir, messages)
        except OSError as error:
            _log.warning("unsent reports cannot be written: %s", error)
            return False
        return True

    def _messages(self) -> Iterator[Reports]:
        """All queued reports: one message for consecutive numbers of one generation."""
        batch: list[_Numbered] = []
        for item in self._queue:
            fits = batch and len(batch) < _MAX_BATCH and batch[-1].number + 1 == item.number
            if batch and not (fits and batch[0].generation == item.generation):
                yield self._message(batch)
                batch = []
            batch.append(item)
        if batch:
            yield self._message(batch)

    def _message(self, batch: list[_Numbered]) -> Reports:
        plan, incarnation = batch[0].generation if batch else self.generation
        return Reports(
            job=self._environment.job,
            worker=self._environment.worker,
            plan=plan,
            incarnation=incarnation,
            first=batch[0].number if batch else 0,
            reports=tuple(item.report for item in batch),
            seen=self._last_order,
        )

    # the two threads: one sends reports, one waits for orders

    def _run(self, next_batch: Callable[[], list[_Numbered]] | None) -> None:
        connection = _Connection(self._environment)
        backoff = Backoff(*_BACKOFF_SECONDS)
        while not self._stopped:
            batch = next_batch() if next_batch is not None else []
            if next_batch is not None and not batch:
                break
            wait = 0 if batch else _LONG_POLL_SECONDS
            if self._exchange(connection, batch, wait=wait):
                backoff.reset()
            else:
                time.sleep(backoff.next())
        connection.close()

    def _next_batch(self) -> list[_Numbered]:
        """Waits for reports; empty when the client is stopped."""
        with self._changed:
            while not self._queue and not self._stopped:
                self._changed.wait()
            if self._stopped:
                return []
            batch = [self._queue[0]]
            for item in list(self._queue)[1:_MAX_BATCH]:
                singly = batch[0].number <= self._send_singly_until
                if singly or item.generation != batch[0].generation:
                    break
                batch.append(item)
            return batch

    def _exchange(self, connection: _Connection, batch: list[_Numbered], *, wait: int) -> bool:
        try:
            status, body = connection.post(pack(self._message(batch)), wait)
            if status == 409:
                self._on_fenced()
                return False
            if status == 422 and batch:
                self._drop_refused(batch, body)
                return True
            orders = unpack(body) if status == 200 else None
            problem: Exception | str = f"HTTP status {status}"
        except (OSError, http.client.HTTPException, CodecError) as error:
            orders, problem = None, error
        if not isinstance(orders, Orders):
            if not self._warned and not self._stopped:
                self._warned = True
                _log.warning("the controller does not answer (%s); training goes on", problem)
            connection.close()
            return False
        self._warned = False
        self._handle(orders)
        return True

    def _drop_refused(self, batch: list[_Numbered], answer: bytes) -> None:
        """Finds the report that the controller refuses, one by one, and drops only that one."""
        if len(batch) > 1:
            self._send_singly_until = batch[-1].number
            return
        with self._changed:
            if self._queue and self._queue[0].number == batch[0].number:
                self._queue.popleft()
            self._changed.notify_all()
        name = type(batch[0].report).__name__
        _log.warning("the controller refused a report (%s): %s", name, answer[:300].decode())

    def _handle(self, orders: Orders) -> None:
        with self._changed:
            while self._queue and self._queue[0].number <= orders.acknowledged:
                self._queue.popleft()
            order = orders.order
            if order is not None and order.plan > self._last_order:
                self._last_order = order.plan
            else:
                order = None
            self._changed.notify_all()
        if orders.store:
            self._on_store(orders.store)
        if order is not None:
            self._on_order(order)


class _Connection:
    """A persistent HTTP connection to the controller."""

    def __init__(self, environment: WorkerEnvironment) -> None:
        parts = urlsplit(environment.controller)
        self._tls = _tls_context(environment) if parts.scheme == "https" else None
        self._netloc = parts.netloc
        self._path = f"{parts.path.rstrip('/')}/worker/reports"
        self._headers = {
            "Authorization": f"Bearer {environment.token}",
            "Content-Type": "application/json",
        }
        self._connection: http.client.HTTPConnection | None = None

    def post(self, body: bytes, wait: int) -> tuple[int, bytes]:
        if self._connection is None:
            timeout = _LONG_POLL_SECONDS + 20
            self._connection = (
                http.client.HTTPConnection(self._netloc, timeout=timeout)
                if self._tls is None
                else http.client.HTTPSConnection(self._netloc, timeout=timeout, context=self._tls)
            )
        self._connection.request("POST", f"{self._path}?wait={wait}", body, self._headers)
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.close()
            self._connection = None


def _tls_context(environment: WorkerEnvironment) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if environment.authority:
        context.load_verify_locations(cadata=environment.authority)
    return context
