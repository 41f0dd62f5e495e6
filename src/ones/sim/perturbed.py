"""Another world: the truth multiplied, to see whether a result rests on our numbers.

Jobs and their arrivals stay as they are, and no policy is told: it meets the other world
as it meets ours, by what jobs report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf

from ones.errors import InvalidSettingError, UnknownNameError, UserError
from ones.sim.kinds import KindPhysics
from ones.sim.lengths import Truth, physics_of
from ones.sim.physics import JobPhysics
from ones.workload.kinds import Kind, Numbers, paper_numbers
from ones.workload.trace import RecordedTraining, Trace

#: what may be multiplied, and what that means
ALTERABLE: Mapping[str, str] = {
    "noise": "gradient noise scales: more, and large batches cost fewer epochs",
    "network": "speed of the network between nodes",
    "rescale": "seconds that a change costs, in place and through a checkpoint",
}


def factors_of(texts: Sequence[str]) -> dict[str, float]:
    """From KEY=FACTOR each; in one order and without ones, so that one world has one description.

    >>> factors_of(["rescale=10", "noise=0.3", "network=1"])
    {'noise': 0.3, 'rescale': 10.0}
    """
    found: dict[str, float] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise InvalidSettingError(f"--physics: {text!r} is not KEY=FACTOR")
        if name not in ALTERABLE:
            raise UnknownNameError("part of the physics", name, ALTERABLE)
        if name in found:
            raise InvalidSettingError(f"--physics: {name} is there twice")
        try:
            found[name] = float(value)
        except ValueError:
            raise InvalidSettingError(f"--physics: {name}: {value!r} is not a number") from None
        if not 0 < found[name] < inf:
            raise InvalidSettingError(f"--physics: {name}: {value} is not a number above 0")
    return {name: found[name] for name in sorted(found) if found[name] != 1.0}


def altered_physics(factors: Mapping[str, float], trace: Trace) -> Callable[[Truth], JobPhysics]:
    """The laws of a trace's jobs in a world with these factors."""
    if not factors:
        return physics_of
    if any(isinstance(entry.training, RecordedTraining) for entry in trace.jobs):
        raise UserError(f"{trace.name}: holds recorded jobs: their physics cannot be multiplied")
    numbers = _altered(paper_numbers(), factors)

    def physics(training: Truth) -> JobPhysics:
        assert not isinstance(training, RecordedTraining)
        return KindPhysics(training, numbers)

    return physics


def _altered(numbers: Numbers, factors: Mapping[str, float]) -> Numbers:
    noise, network, rescale = (factors.get(n, 1.0) for n in ("noise", "network", "rescale"))

    def altered(kind: Kind) -> Kind:
        return replace(
            kind,
            noise_start=noise * kind.noise_start,
            noise_limit=noise * kind.noise_limit,
            rescale_seconds=rescale * kind.rescale_seconds,
            restart_seconds=rescale * kind.restart_seconds,
        )

    hardware, costs = numbers.hardware, numbers.costs
    return replace(
        numbers,
        kinds={name: altered(kind) for name, kind in numbers.kinds.items()},
        figures={name: altered(kind) for name, kind in numbers.figures.items()},
        hardware=replace(hardware, network_gb_per_second=network * hardware.network_gb_per_second),
        costs=replace(costs, regroup_seconds=rescale * costs.regroup_seconds),
    )
