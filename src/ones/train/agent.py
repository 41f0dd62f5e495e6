"""Between a worker and the controller: two threads that never make training wait.

Reports are numbered and kept until they are acknowledged; a controller that is down or
restarts gets them when it is back. What is not acknowledged when the worker ends is written to its
run directory, where the controller finds it. Orders arrive by long-poll. Stdlib only.
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

from ones.train import kept, logs
from ones.wire import CodecError, Orders, Reports, pack, unpack
from ones.wire.environment import WorkerEnvironment
from ones.wire.messages import Order, Report, Steps

_WAIT = 20  # seconds of a long-poll
_BATCH = 500
_KEPT = 100_000  # reports, while nobody listens; the oldest `Steps` go first
_SOON = 2.0  # seconds that a worker waits at its end, if what is left is safe on disk

_log = logs.logger(__name__)


@dataclass(frozen=True, slots=True)
class _Numbered:
    number: int
    generation: tuple[int, int]
    report: Report


class Agent:
    def __init__(
        self,
        environment: WorkerEnvironment,
        *,
        on_order: Callable[[Order], None],
        on_fenced: Callable[[], None],
        on_store: Callable[[str], None],
    ) -> None:
        self._environment = environment
        self._on_order, self._on_fenced, self._on_store = on_order, on_fenced, on_store
        self.generation = (environment.plan, environment.incarnation)
        self._queue: deque[_Numbered] = deque()
        self._next = 1
        self._seen = 0
        self._changed = threading.Condition()
        self._stopped = False
        self._complained = False
        self._alone = 0  # reports up to this number are sent one by one

    def start(self) -> None:
        atexit.register(self._keep)
        for name, work in (("ones-reports", self._report), ("ones-orders", self._listen)):
            threading.Thread(target=work, name=name, daemon=True).start()

    def say(self, report: Report) -> None:
        with self._changed:
            last = self._queue[-1] if self._queue else None
            # while nobody listens, counts since the start of the epoch replace one another
            replaces = isinstance(report, Steps) and last and isinstance(last.report, Steps)
            if last and replaces and len(self._queue) > 1:
                self._queue[-1] = _Numbered(last.number, self.generation, report)
            elif len(self._queue) < _KEPT:
                self._queue.append(_Numbered(self._next, self.generation, report))
                self._next += 1
            self._changed.notify_all()

    def flush(self, seconds: float) -> bool:
        """Waits until all is acknowledged, but no longer than that."""
        until = time.monotonic() + seconds
        with self._changed:
            while self._queue and not self._stopped:
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def stop(self) -> None:
        atexit.unregister(self._keep)
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def end(self, seconds: float) -> None:
        """The worker ends: wait until all is acknowledged, or safe in the run directory."""
        soon = min(_SOON, seconds)
        if not self.flush(soon):
            is_safe = self._keep()
            if self.flush(0.0 if is_safe else seconds - soon) and is_safe:
                kept.remove(self._environment.run_dir)
        self.stop()

    def _keep(self) -> bool:
        """Write what is not acknowledged; False if that could not be done."""
        with self._changed:
            messages = list(self._messages())
        if not messages or not self._environment.run_dir:
            return not messages
        try:
            kept.write(self._environment.run_dir, messages)
        except OSError as problem:
            _log.warning("the last reports could not be kept: %s", problem)
            return False
        return True

    def _messages(self) -> Iterator[Reports]:
        """All that is queued: one message for numbers that follow on, of one generation."""
        batch: list[_Numbered] = []
        for item in self._queue:
            fits = batch and len(batch) < _BATCH and batch[-1].number + 1 == item.number
            if batch and not (fits and batch[0].generation == item.generation):
                yield self._message(batch)
                batch = []
            batch.append(item)
        if batch:
            yield self._message(batch)

    # the two threads

    def _report(self) -> None:
        line = _Line(self._environment)
        pause = 0.1
        while True:
            with self._changed:
                while not self._queue and not self._stopped:
                    self._changed.wait()
                if self._stopped:
                    break
                batch = [self._queue[0]]
                for item in list(self._queue)[1:_BATCH]:
                    alone = batch[0].number <= self._alone
                    if alone or item.generation != batch[0].generation:
                        break
                    batch.append(item)
            if self._exchange(line, batch, wait=0):
                pause = 0.1
            else:
                time.sleep(pause)
                pause = min(2 * pause, 5.0)
        line.close()

    def _listen(self) -> None:
        line = _Line(self._environment)
        pause = 0.1
        while not self._stopped:
            if self._exchange(line, [], wait=_WAIT):
                pause = 0.1
            else:
                time.sleep(pause)
                pause = min(2 * pause, 5.0)
        line.close()

    def _message(self, batch: list[_Numbered]) -> Reports:
        plan, incarnation = batch[0].generation if batch else self.generation
        return Reports(
            job=self._environment.job,
            worker=self._environment.worker,
            plan=plan,
            incarnation=incarnation,
            first=batch[0].number if batch else 0,
            reports=tuple(item.report for item in batch),
            seen=self._seen,
        )

    def _exchange(self, line: _Line, batch: list[_Numbered], *, wait: int) -> bool:
        try:
            status, body = line.post(pack(self._message(batch)), wait)
            if status == 409:
                self._on_fenced()
                return False
            if status == 422 and batch:
                self._leave_out(batch, body)
                return True
            orders = unpack(body) if status == 200 else None
            problem: Exception | str = f"HTTP status {status}"
        except (OSError, http.client.HTTPException, CodecError) as raised:
            orders, problem = None, raised
        if not isinstance(orders, Orders):
            if not self._complained and not self._stopped:
                self._complained = True
                _log.warning("no word from the controller (%s); going on", problem)
            line.close()
            return False
        self._complained = False
        self._take(orders)
        return True

    def _leave_out(self, batch: list[_Numbered], answer: bytes) -> None:
        """The controller will never take this batch: find the report that it refuses, one by one,
        and drop that one, so that the others still arrive."""
        if len(batch) > 1:
            self._alone = batch[-1].number
            return
        with self._changed:
            if self._queue and self._queue[0].number == batch[0].number:
                self._queue.popleft()
            self._changed.notify_all()
        kind = type(batch[0].report).__name__
        _log.warning("the controller refused a report (%s): %s", kind, answer[:300].decode())

    def _take(self, orders: Orders) -> None:
        with self._changed:
            while self._queue and self._queue[0].number <= orders.acknowledged:
                self._queue.popleft()
            fresh = orders.order is not None and orders.order.plan > self._seen
            if orders.order is not None and fresh:
                self._seen = orders.order.plan
            self._changed.notify_all()
        if orders.store:
            self._on_store(orders.store)
        if orders.order is not None and fresh:
            self._on_order(orders.order)


class _Line:
    """One kept-alive connection to the controller."""

    def __init__(self, environment: WorkerEnvironment) -> None:
        parts = urlsplit(environment.controller)
        self._trusted = _trusted(environment) if parts.scheme == "https" else None
        self._place = parts.netloc
        self._path = f"{parts.path.rstrip('/')}/worker/reports"
        self._headers = {
            "Authorization": f"Bearer {environment.token}",
            "Content-Type": "application/json",
        }
        self._connection: http.client.HTTPConnection | None = None

    def post(self, body: bytes, wait: int) -> tuple[int, bytes]:
        if self._connection is None:
            seconds = _WAIT + 20
            self._connection = (
                http.client.HTTPConnection(self._place, timeout=seconds)
                if self._trusted is None
                else http.client.HTTPSConnection(
                    self._place, timeout=seconds, context=self._trusted
                )
            )
        self._connection.request("POST", f"{self._path}?wait={wait}", body, self._headers)
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.close()
            self._connection = None


def _trusted(environment: WorkerEnvironment) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if environment.authority:
        context.load_verify_locations(cadata=environment.authority)
    return context
