"""Odd values that pass the border, for each field of each worker report and of a submission.

`oddities()` lists them as (event, field, value): one field of one honest event is replaced. The
bounds are those of the messages; values outside of them are refused there. `field` may reach into
a value ("configuration.gpus"). `WIRE` names the message that becomes the event; its fields have the
same names, without the part before the dot.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple, get_type_hints

from ones.core import events as ev
from ones.core.cluster import Gpu, NodeId
from ones.core.events import Event
from ones.core.job import Configuration
from ones.stopping import StopRule
from ones.wire.work import Unit, Work

#: bounds of whole numbers
LARGEST = 2**53
LARGEST_BATCH = 2**31
LARGEST_COUNT = 2**20  # of GPUs, nodes, micro-steps
MOST_EPOCHS = 10**9
LARGEST_SUBMITTED = 100_000  # any count that a user may ask for
#: bounds of other numbers
SHORTEST_STEP, LONGEST = 1e-9, 1e6
LARGEST_REAL = 1e30  # of losses, accuracies and noise, either way

WIRE: dict[type[Event], str] = {
    ev.JobDescribed: "Joined",
    ev.StepsDone: "Steps",
    ev.EpochFinished: "Epoch",
    ev.ThroughputMeasured: "Speed",
    ev.MemoryLimitLearned: "MemoryLimit",
    ev.WorkerReady: "Ready",
    ev.Rescaled: "Switched",
    ev.RescaleFailed: "SwitchFailed",
}
#: not filled in by a worker: by the controller, or by engines of others only
NOT_REPORTED = {
    "at", "job", "gpu", "harmless", "not_finite", "effective_samples", "batch", "min_batch",
    "max_batch",
}  # fmt: skip


def _whole(least: int, most: int, *, usual: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Both bounds, what is just inside them, small primes and round numbers."""
    some = (least, least + 1, 2, 3, 7, 97, 1009, 65_536, 1_000_003, 2**31 - 1, most - 1, most)
    return tuple(sorted({n for n in (*some, *usual) if least <= n <= most}))


_COUNTS = _whole(1, LARGEST_COUNT)
_BATCHES = _whole(1, LARGEST_BATCH)
_FROM_ONE, _FROM_NONE = _whole(1, LARGEST), _whole(0, LARGEST)
_EPOCHS = _whole(1, MOST_EPOCHS, usual=(1_000_000,))
_STEP_SECONDS = (SHORTEST_STEP, 1e-8, 1e-6, 1e-3, 7.0, 1e3, LONGEST - 1, LONGEST)
_REALS = (
    -LARGEST_REAL, -1e15, -2.5, -1.0, -5e-324, -0.0, 0.0, 5e-324, 1e-300, 1e-9, 0.5, 1.0, 97.0,
    1e15, LARGEST_REAL,
)  # fmt: skip
_TEXTS = ("", "x" * 1000, "\x1b[31mred\N{SNOWMAN}\x00\n{}%s")
_GENERATIONS = {
    "generation.plan": (0, 1, LARGEST - 1, LARGEST),
    "generation.incarnation": (1, 2, LARGEST),
}

_WORKS = (None, Work(Unit.STEPS, 0, 1), Work(Unit.TOKENS, LARGEST, None), Work(Unit.EPOCHS, 7, 3))

#: what each field of each report may be
VALUES: dict[type[Event], dict[str, tuple[object, ...]]] = {
    ev.JobDescribed: {
        "dataset_size": _FROM_ONE,
        "base_batch": _BATCHES,
        "optimizer": _TEXTS,
        "parameter_bytes": _FROM_NONE,
        "max_local_batch": (None, *_BATCHES),
    },
    ev.JobFoundFixed: {},
    ev.TrackerLinked: {"url": ("http://x", "https://" + "x" * 1990)},
    ev.TrainingRestarted: {"epochs": _FROM_NONE},
    ev.StepsDone: {
        "epoch": _EPOCHS,
        "steps": _FROM_NONE,
        "samples": _FROM_NONE,
        "gradient_noise": (None, *_REALS, -64.0, -65.0, -256.0),  # cancels a batch
        "planned_epochs": (None, *_EPOCHS),
        "work": _WORKS,
    },
    ev.EpochFinished: {
        "epoch": _EPOCHS,
        "samples": _FROM_NONE,
        "steps": _FROM_NONE,
        "loss": (None, *_REALS),
        "accuracy": (None, *_REALS),
        "first_loss": (None, *_REALS),
        "step_seconds": (None, *_STEP_SECONDS),
        "gradient_noise": (None, *_REALS, -64.0, -65.0, -256.0),  # cancels a batch
        "planned_epochs": (None, *_EPOCHS),
        "work": _WORKS,
    },
    ev.ThroughputMeasured: {
        "configuration": (
            Configuration(9, 3, 64, 1),  # more GPUs than the cluster has
            Configuration(1, 7, 64, 1),  # more nodes than GPUs
            Configuration(2, 1, 3, 97),  # more parts than samples
            Configuration(97, 1, 7, 1),  # fewer samples than GPUs
            Configuration(1, 1, 1, 1),
            Configuration(LARGEST_COUNT, LARGEST_COUNT, LARGEST_BATCH, LARGEST_COUNT),
            Configuration(LARGEST_COUNT, 1, 1, LARGEST_COUNT),
            Configuration(1, LARGEST_COUNT, LARGEST_BATCH, 1),
        ),
        "configuration.gpus": _COUNTS,
        "configuration.nodes": _COUNTS,
        "configuration.batch": _BATCHES,
        "configuration.micro_steps": _COUNTS,
        "step_seconds": _STEP_SECONDS,
        "steps": _FROM_ONE,
        "first_step_extra_seconds": (None, 0.0, -0.0, 5e-324, 97.0, LONGEST),
    },
    ev.MemoryLimitLearned: {"max_local_batch": _BATCHES},
    ev.WorkerReady: {},
    ev.Rescaled: {
        "pause_seconds": (0.0, -0.0, 5e-324, 1e-9, 97.0, LONGEST - 1, LONGEST),
        "survivors": (
            (),
            (Gpu(NodeId("n0"), 0),) * 3,
            (Gpu(NodeId("nowhere"), 0), Gpu(NodeId("n0"), LARGEST_COUNT)),
        ),
    },
    ev.RescaleFailed: {"reason": _TEXTS},
}
for _fields in VALUES.values():
    _fields.update(_GENERATIONS)

_SUBMITTED = _whole(1, LARGEST_SUBMITTED)
#: what a user may ask for
SUBMITTED: dict[str, tuple[object, ...]] = {
    "job.requested_batch": (None, *_whole(1, 10**9)),
    "job.epochs": (None, *_SUBMITTED),
    "job.min_gpus": _SUBMITTED,
    "job.max_gpus": (None, *(n for n in _SUBMITTED if n >= 3)),  # not below min_gpus
    "job.requested_gpus": _SUBMITTED,
    "job.priority": (-1e6, -1.0, -5e-324, 5e-324, 1.0, 1e6),
    "job.kind": ("", "x" * 200),
    "job.retries": (0, 1000),
    "job.elastic": (False,),
    "job.stop": (
        StopRule(target_accuracy=0.0),
        StopRule(target_accuracy=1.0, target_epochs=LARGEST_SUBMITTED),
        StopRule(patience=1),
        StopRule(max_epochs=1),
        StopRule(max_epochs=LARGEST_SUBMITTED),
    ),
}


class Oddity(NamedTuple):
    """One field of one report, and what it is to be."""

    event: type[Event]
    field: str
    value: object

    def of(self, report: Any) -> Any:  # noqa: ANN401 a report of any type, and one like it
        """The same report with the odd value in it."""
        field, _, part = self.field.partition(".")
        value = self.value
        if part:
            value = with_fields(getattr(report, field), **{part: value})
        return with_fields(report, **{field: value})

    def __str__(self) -> str:
        return f"{self.event.__name__}.{self.field}={self.value!r:.60}"


#: each has stopped a policy before
STOPPED_ONCE = (
    Oddity(ev.EpochFinished, "gradient_noise", -64.0),
    Oddity(ev.EpochFinished, "gradient_noise", -65.0),
    Oddity(ev.EpochFinished, "gradient_noise", -256.0),
    Oddity(ev.EpochFinished, "loss", 5e-324),
    Oddity(ev.EpochFinished, "samples", LARGEST),
)


def with_fields(report: Any, **values: object) -> Any:  # noqa: ANN401 as above
    """A report like this one, with other values."""
    told = {name: getattr(report, name) for name in get_type_hints(type(report))}
    return type(report)(**(told | values))


def oddities() -> Iterator[Oddity]:
    """Every odd value of every field of every report, and of a submission."""
    for event, fields in {**VALUES, ev.JobSubmitted: SUBMITTED}.items():
        for field, values in fields.items():
            for value in values:
                yield Oddity(event, field, value)


def all_odd(report: Any, dice: Random) -> Any:  # noqa: ANN401 as above
    """The same report with about half of its fields odd at once."""
    for field, values in VALUES[type(report)].items():
        if not field.startswith("generation") and dice.random() < 0.5:
            report = Oddity(type(report), field, dice.choice(values)).of(report)
    return report


def reported_fields(event: type[Event]) -> set[str]:
    """The fields of an event that a worker fills in."""
    return set(get_type_hints(event)) - NOT_REPORTED
