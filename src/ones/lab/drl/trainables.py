"""The policies that the trainer can train: `drl`, `dl2` and `deeprm`.

Each has initial weights, a student that plays episodes and records its choices, the gradient of the
probability of choices, and the file of its weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from ones.core.events import Event
from ones.core.plan import PlanAdopted
from ones.core.policy import Decision
from ones.core.view import View
from ones.lab.drl.episodes import Recording, Student
from ones.lab.drl.teacher import teacher_choice
from ones.models.seat_network import Floats, SeatChooser, SeatNetwork, SeatObservation
from ones.policies.deeprm import policy as deeprm
from ones.policies.dl2 import policy as dl2
from ones.policies.drl import network as drl_network
from ones.policies.drl.trained_weights import TrainedWeights, from_file


class Trainable(Protocol):
    @property
    def has_kinds(self) -> bool:
        """Whether the weights come with a table of kinds."""
        ...

    def initial(self, rng: np.random.Generator) -> Floats: ...

    def student(
        self, learned: TrainedWeights, *, seed: int = 0, sampled: bool = True, taught: int = 0
    ) -> Recording:
        """`taught`: GPUs of the cluster if the teacher chooses; 0: the network does."""
        ...

    def slope(
        self,
        weights: Floats,
        looks: Sequence[Any],
        chosen: Sequence[int],
        worth: Floats,
        entropy: float = 0.0,
    ) -> Floats:
        """Gradient of the mean of worth x log probability of the choices."""
        ...

    def text(self, learned: TrainedWeights) -> str:
        """The file of the weights."""
        ...

    def read(self, path: str) -> TrainedWeights:
        """The weights of a file. Raises ValueError if it is not valid."""
        ...


class TrainableDrl:
    has_kinds = True

    def initial(self, rng: np.random.Generator) -> Floats:
        return drl_network.initial_weights(rng)

    def student(
        self, learned: TrainedWeights, *, seed: int = 0, sampled: bool = True, taught: int = 0
    ) -> Student:
        pick = partial(teacher_choice, gpus=taught) if taught else None
        return Student(learned, seed=seed, sampled=sampled, pick=pick)

    def slope(
        self,
        weights: Floats,
        looks: Sequence[Any],
        chosen: Sequence[int],
        worth: Floats,
        entropy: float = 0.0,
    ) -> Floats:
        batch = drl_network.Batch.of(looks)
        choices = batch.choices(looks, chosen)
        return drl_network.gradient(weights, batch, choices, worth, entropy=entropy)[1]

    def text(self, learned: TrainedWeights) -> str:
        return learned.text()

    def read(self, path: str) -> TrainedWeights:
        return from_file(path)


class _RecordingChooser(SeatChooser):
    """A chooser that keeps its choices, which may be those of a teacher."""

    def __init__(
        self,
        network: SeatNetwork,
        weights: Floats,
        *,
        seed: int,
        sampled: bool,
        teacher: Callable[[SeatObservation], int] | None,
    ) -> None:
        super().__init__(network, weights, seed=seed, sampled=sampled)
        self._teacher = teacher
        self.now = 0.0
        self.looks: list[SeatObservation] = []
        self.chosen: list[int] = []
        self.times: list[float] = []

    def choose(self, observation: SeatObservation, turn: int) -> int:
        chosen = (
            super().choose(observation, turn)
            if self._teacher is None
            else self._teacher(observation)
        )
        self.looks.append(observation)
        self.chosen.append(chosen)
        self.times.append(self.now)
        return chosen


class SeatStudent:
    """A policy with seats; records its choices. It must be asked once after each event."""

    def __init__(self, policy: dl2.Dl2 | deeprm.DeepRm, chooser: _RecordingChooser) -> None:
        self._policy, self._chooser = policy, chooser
        policy.chooser = chooser
        self.decides_on, self.native_mechanism = policy.decides_on, policy.native_mechanism
        self.save, self.load = policy.save, policy.load
        self.looks, self.chosen, self.times = chooser.looks, chooser.chosen, chooser.times
        self.counts: list[tuple[float, int]] = []

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        self._chooser.now = view.now
        self._policy.observe(event, view)
        if type(event) in self.decides_on:
            self.counts.append((view.now, len(view.jobs)))

    def decide(self, view: View) -> Decision:
        return self._policy.decide(view)


@dataclass(frozen=True, slots=True)
class TrainableSeats:
    """A policy with a network over seats."""

    make: Callable[[], dl2.Dl2 | deeprm.DeepRm]
    network: SeatNetwork
    teacher: Callable[[SeatObservation], int]
    has_kinds: bool = False

    def initial(self, rng: np.random.Generator) -> Floats:
        return self.network.initial(rng)

    def student(
        self, learned: TrainedWeights, *, seed: int = 0, sampled: bool = True, taught: int = 0
    ) -> SeatStudent:
        chooser = _RecordingChooser(
            self.network,
            learned.weights,
            seed=seed,
            sampled=sampled,
            teacher=self.teacher if taught else None,
        )
        return SeatStudent(self.make(), chooser)

    def slope(
        self,
        weights: Floats,
        looks: Sequence[Any],
        chosen: Sequence[int],
        worth: Floats,
        entropy: float = 0.0,
    ) -> Floats:
        return self.network.gradient(weights, looks, chosen, worth, entropy=entropy)[1]

    def text(self, learned: TrainedWeights) -> str:
        return self.network.text(learned.weights, learned.training)

    def read(self, path: str) -> TrainedWeights:
        found = self.network.read(path)
        return TrainedWeights(found.weights, {}, found.training)


TRAINABLE: dict[str, Trainable] = {
    "drl": TrainableDrl(),
    "dl2": TrainableSeats(dl2.untrained, dl2.NETWORK, dl2.fewest_gpus),
    "deeprm": TrainableSeats(deeprm.untrained, deeprm.NETWORK, deeprm.shortest_that_fits),
}
