"""A simulated network between workers and the controller, and the server at its end.

The server is the real exchange with workers (`ones.control.live.worker_exchange`) with
virtual time instead of an event loop: reports are answered when they are safe, long-polls when an
order comes, and what takes too long with 503.
"""

from __future__ import annotations

from collections.abc import Callable

from ones.control.api.access import COMMIT_SECONDS
from ones.control.controller import Controller
from ones.control.limits import LimitError
from ones.control.live.worker_exchange import AdmittedWorker, RefusedRequestError, WorkerExchange
from ones.lab.faults.context import ControllerInstance, FaultContext

#: status and body of an answer; None: the connection broke
Reply = Callable[[int | None, bytes], None]

CLIENT_SECONDS = 40.0  # after which a worker gives up a request; see `ones.train.controller_client`


class SimulatedServer:
    """The worker API of one instance of the controller."""

    def __init__(
        self, context: FaultContext, controller: Controller, instance: ControllerInstance
    ) -> None:
        self._context, self.controller, self._instance = context, controller, instance
        self._exchange = WorkerExchange(controller)
        self._open: dict[int, Reply] = {}
        self._next = 0

    def receive(self, body: bytes, token: str, wait: float, reply: Reply) -> None:
        self._next += 1
        number = self._next
        self._open[number] = reply
        try:
            admitted = self._exchange.admit(body, self._exchange.job_of(token))
        except (RefusedRequestError, LimitError) as problem:
            self._answer(number, problem.status, b"")
            return
        except Exception as problem:
            self._context.violation(f"a request raised {type(problem).__name__}: {problem}")
            self._answer(number, 500, b"")
            return
        if admitted.message.reports:
            self._later(COMMIT_SECONDS, lambda: self._answer(number, 503, b""))
            self.controller.report(
                admitted.message,
                lambda problem: self._later(0.0, lambda: self._safe(number, admitted, problem)),
            )
            return
        launch, seen = admitted.worker.launch, admitted.message.seen
        order = self._exchange.unseen(admitted)
        if order is None and wait > 0:
            mailbox = self.controller.engine.live.mailbox
            order = mailbox.wait(
                launch, seen, lambda: self._later(0.0, lambda: self._woken(number, admitted))
            )
        if order is not None or wait <= 0:
            self._answer(number, 200, self._exchange.answer(admitted, order))
        else:
            self._later(wait, lambda: self._woken(number, admitted))

    def hang_up(self) -> None:
        """Breaks every connection after a crash of the controller."""
        for number in list(self._open):
            self._answer(number, None, b"")

    def _later(self, seconds: float, do: Callable[[], None]) -> None:
        self._context.after(seconds, do, self._instance)

    def _safe(self, number: int, admitted: AdmittedWorker, problem: Exception | None) -> None:
        if number not in self._open:
            return
        if problem is not None:
            self._answer(number, 500, b"")
        else:
            order = self._exchange.unseen(admitted)
            self._answer(number, 200, self._exchange.answer(admitted, order))

    def _woken(self, number: int, admitted: AdmittedWorker) -> None:
        if number in self._open:
            self._exchange.note_call(admitted.worker)
            order = self._exchange.unseen(admitted)
            self._answer(number, 200, self._exchange.answer(admitted, order))

    def _answer(self, number: int, status: int | None, body: bytes) -> None:
        reply = self._open.pop(number, None)
        if reply is not None:
            reply(status, body)


class SimulatedNetwork:
    """Delays, loses and repeats requests and answers, as its settings say."""

    def __init__(self, context: FaultContext) -> None:
        self._context = context
        self.server: SimulatedServer | None = None  # None: the controller is down
        self.delay = (0.001, 0.02)  # seconds, from and to
        self.loss = 0.0  # probability, of a request or its answer
        self.repeats = 0.0  # probability that a request arrives twice
        self.observe: Callable[[bytes, str], None] = lambda body, token: None

    def request(self, body: bytes, token: str, wait: float, reply: Reply) -> None:
        """Sends a request; `reply` is called once, after at most `CLIENT_SECONDS`."""
        rng, done = self._context.rng, False

        def once(status: int | None, answer: bytes) -> None:
            nonlocal done
            if not done:
                done = True
                reply(status, answer)

        def answered(status: int | None, answer: bytes) -> None:
            if status is not None and rng.random() < self.loss:
                self._context.fault("loss", "an answer")
                self._broken(once)
            else:
                self._context.after(self._seconds(), lambda: once(status, answer))

        self.observe(body, token)
        if rng.random() < self.loss:
            self._context.fault("loss", "a request")
            self._broken(once)
            return
        self._context.after(self._seconds(), lambda: self._arrive(body, token, wait, answered))
        if rng.random() < self.repeats:
            self._context.fault("duplicate", "a request")
            seconds = self._seconds() + rng.uniform(0.0, 30.0)
            self._context.after(
                seconds, lambda: self._arrive(body, token, 0.0, lambda status, answer: None)
            )

    def _seconds(self) -> float:
        return self._context.rng.uniform(*self.delay)

    def _broken(self, reply: Reply) -> None:
        """Most broken connections are noticed soon, some only by the client's timeout."""
        rng = self._context.rng
        seconds = CLIENT_SECONDS if rng.random() < 0.2 else rng.uniform(0.01, 3.0)
        self._context.after(seconds, lambda: reply(None, b""))

    def _arrive(self, body: bytes, token: str, wait: float, reply: Reply) -> None:
        if self.server is None:
            reply(None, b"")
        else:
            self.server.receive(body, token, wait, reply)
