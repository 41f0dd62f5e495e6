"""Paced jobs in the simulator: their step times are known, all other times are measured."""

from __future__ import annotations

from math import ceil

from ones.core.cluster import Cluster
from ones.core.job import JobId
from ones.core.schedule import Allocation
from ones.core.state import State
from ones.lab.bench.fidelity.calibration import MeasuredTimes
from ones.lab.bench.fidelity.paced_jobs import KINDS, PacedTrace, loss_in
from ones.lab.bench.live_service import SHORT_JOB_SETTINGS
from ones.policies import create
from ones.sim import Simulator
from ones.sim.lengths import Truth
from ones.sim.physics import Death, EpochRules, Noise, Setback
from ones.workload import Training


class PacedPhysics:
    """A sample is worth the same at every batch, and the job ends after its epochs."""

    optimizer = "sgd"
    parameter_bytes = 4 * 16 * 16
    report_noise = Noise(0.0, 0.0)
    epoch_rules = EpochRules()
    death: Death | None = None

    def __init__(self, training: Truth, times: MeasuredTimes) -> None:
        assert isinstance(training, Training)
        self._kind = KINDS[training.kind]
        self._times = times
        self.max_local_batch: int | None = self._kind.max_local_batch
        self.switch = times.times

    def step_seconds(self, allocation: Allocation, sharing: int = 1) -> float:
        beside = self._times.overhead_seconds(allocation.n_gpus)
        return self._kind.compute_seconds(allocation) + beside

    def busy_share(self, allocation: Allocation) -> float:
        return 1.0

    def efficiency(self, batch: int, progress: float) -> float:
        return 1.0

    def noise_scale(self, progress: float) -> float | None:
        return None

    def accuracy(self, progress: float, noise: float) -> float | None:
        return None

    def loss(self, progress: float) -> float | None:
        return loss_in(max(0, ceil(progress - 1e-9) - 1))

    def setback(self, before: int, after: int) -> Setback:
        return Setback()


def simulate(trace: PacedTrace, policy: str, mechanism: str, times: MeasuredTimes) -> State:
    """Simulates the trace under the policy as the service would run it."""
    simulator = Simulator(
        trace.simulated(),
        Cluster.of(trace.slots, trace.slots),
        create(policy, seed=0, **SHORT_JOB_SETTINGS[policy]),
        mechanism="elastic",
        physics=lambda training: PacedPhysics(training, times),
        in_place=mechanism != "restart",
        kills=[(kill.at, JobId(kill.job)) for kill in trace.kills],
    )
    return simulator.run().state
