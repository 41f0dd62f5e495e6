"""Workers that also send invalid messages, with the token of their job."""

from __future__ import annotations

from ones.lab.faults.context import FaultContext
from ones.lab.faults.hostile_messages import mutate
from ones.lab.faults.network import SimulatedNetwork
from ones.lab.faults.worker import SimulatedWorker

HOSTILE_SECONDS = 15.0  # mean time between two messages of a worker


class HostileWorkers:
    """Changes and repeats messages of its workers, until a time."""

    def __init__(self, context: FaultContext, network: SimulatedNetwork, *, until: float) -> None:
        self._context, self._network, self._until = context, network, until
        self._messages: dict[str, list[bytes]] = {}  # token of a job -> its honest messages
        self._attacking = False

    def add(self, worker: SimulatedWorker) -> None:
        if worker.token not in self._messages:
            self._messages[worker.token] = []
            before = self._network.observe

            def observe(body: bytes, token: str) -> None:
                before(body, token)
                if token == worker.token and not self._attacking:
                    self._messages[token].append(body)

            self._network.observe = observe
        self._attack(worker)

    def _attack(self, worker: SimulatedWorker) -> None:
        context, messages = self._context, self._messages[worker.token]
        if not worker.alive or context.now > self._until:
            return
        if messages:
            what, body = mutate(context.rng.choice(messages[-20:]), context.rng)
            context.fault("hostile", f"{worker.name}: {what}")
            self._attacking = True  # only honest messages are changed
            self._network.request(body, worker.token, 0.0, lambda status, answer: None)
            self._attacking = False
        seconds = context.rng.expovariate(1.0 / HOSTILE_SECONDS)
        context.after(seconds, lambda: self._attack(worker))
