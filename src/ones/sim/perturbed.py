"""Perturbed physics: numbers of the simulator changed, to test how robust a result is.

Jobs and their arrivals stay the same. Policies do not know the changes: they see their effect
only in what jobs report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from ones.errors import InvalidSettingError, UnknownNameError, UserError
from ones.sim.kinds import KindPhysics
from ones.sim.lengths import Truth, physics_of
from ones.sim.physics import JobPhysics
from ones.workload.kinds import Kind, Numbers, numbers_of
from ones.workload.trace import RecordedTraining, Trace


@dataclass(frozen=True, slots=True)
class Alterable:
    """A quantity that can be changed."""

    meaning: str
    usual: float = 1.0  # the value that changes nothing; 0: an amount instead of a factor


ALTERABLE: Mapping[str, Alterable] = {
    "noise": Alterable("gradient noise scale: above 1, large batches need fewer epochs"),
    "network": Alterable("speed of the network between nodes"),
    "rescale": Alterable("seconds of a rescale, in place and through a checkpoint"),
    "startup": Alterable("seconds until the workers of a new job or joining workers have started"),
    "reported-noise": Alterable("gradient noise scale in reports, but not in training"),
    "stragglers": Alterable("step times on nodes that are slow for some minutes, 10 % of the time"),
    "loss-noise": Alterable("lognormal sigma of the loss in each epoch", usual=0.0),
    "loss-waves": Alterable(
        "amplitude of slow rises and falls of the loss, as a part of it", usual=0.0
    ),
}


def factors_of(texts: Sequence[str]) -> dict[str, float]:
    """Parses texts KEY=VALUE. The result is sorted and omits usual values, so that equal physics
    have equal descriptions.

    >>> factors_of(["rescale=10", "noise=0.3", "network=1", "loss-noise=0"])
    {'noise': 0.3, 'rescale': 10.0}
    """
    found: dict[str, float] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise InvalidSettingError(f"--physics: {text!r} is not KEY=VALUE")
        if name not in ALTERABLE:
            raise UnknownNameError("part of the physics", name, ALTERABLE)
        if name in found:
            raise InvalidSettingError(f"--physics: {name} is given twice")
        try:
            found[name] = float(value)
        except ValueError:
            raise InvalidSettingError(f"--physics: {name}: {value!r} is not a number") from None
        allowed = found[name] > 0 or (found[name] == 0 == ALTERABLE[name].usual)
        if not (allowed and found[name] < inf):
            least = "of at least 0" if ALTERABLE[name].usual == 0 else "above 0"
            raise InvalidSettingError(f"--physics: {name}: {value} is not a number {least}")
    return {name: found[name] for name in sorted(found) if found[name] != ALTERABLE[name].usual}


def altered_physics(
    factors: Mapping[str, float], trace: Trace, start_up: float | None = None
) -> Callable[[Truth], JobPhysics]:
    """The training models of the jobs of a trace, with these changes.

    `start_up`: seconds until workers train, at a start, a restart and a growth; None: as the
    numbers say.
    """
    if start_up is not None and not 0 <= start_up < inf:
        raise InvalidSettingError(f"start_up: {start_up} is not a number of at least 0")
    if not factors and start_up is None:
        return physics_of
    if any(isinstance(entry.training, RecordedTraining) for entry in trace.jobs):
        raise UserError(
            f"{trace.name}: contains recorded jobs; --physics needs a trace without them"
        )
    used = {e.training.numbers for e in trace.jobs if not isinstance(e.training, RecordedTraining)}
    numbers = {name: _altered(numbers_of(name), factors, start_up) for name in used}

    def physics(training: Truth) -> JobPhysics:
        assert not isinstance(training, RecordedTraining)
        found = KindPhysics(training, numbers[training.numbers])
        found.report_noise = replace(
            found.report_noise,
            gradient_bias=factors.get("reported-noise", 1.0),
            loss=factors.get("loss-noise", 0.0),
            loss_waves=factors.get("loss-waves", 0.0),
        )
        return found

    return physics


def _altered(
    numbers: Numbers, factors: Mapping[str, float], start_up: float | None = None
) -> Numbers:
    noise, network, rescale, startup = (
        factors.get(n, 1.0) for n in ("noise", "network", "rescale", "startup")
    )

    def altered(kind: Kind) -> Kind:
        return replace(
            kind,
            noise_start=noise * kind.noise_start,
            noise_limit=noise * kind.noise_limit,
            rescale_seconds=rescale * kind.rescale_seconds,
            restart_seconds=rescale * kind.restart_seconds if start_up is None else start_up,
        )

    hardware, costs = numbers.hardware, numbers.costs
    if start_up is not None:
        costs = replace(costs, cold_start_seconds=start_up, worker_start_seconds=start_up)
    return replace(
        numbers,
        kinds={name: altered(kind) for name, kind in numbers.kinds.items()},
        figures={name: altered(kind) for name, kind in numbers.figures.items()},
        hardware=replace(hardware, network_gb_per_second=network * hardware.network_gb_per_second),
        costs=replace(
            costs,
            cold_start_seconds=startup * costs.cold_start_seconds,
            worker_start_seconds=startup * costs.worker_start_seconds,
            regroup_seconds=rescale * costs.regroup_seconds,
            resume_seconds=rescale * costs.resume_seconds,
            migrate_seconds=rescale * costs.migrate_seconds,
        ),
    )
