"""Samples of what workers use, from the nodes to the controller, and the file they are partly from.

A worker writes `OwnSteps` to its run directory; the sampler of its node reads the file with the
counters of the machine. Both are untrusted: the fields have bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta

from ones.wire.bounds import Name, StepSeconds, Value, WorkerName
from ones.wire.decoding import Decoder
from ones.wire.encoding import to_plain

#: seconds between two samples of a worker
SAMPLE_SECONDS = 10.0
#: samples in one message: the slots of a node
MOST_SAMPLES = 4096
#: file in a worker's directory with its `OwnSteps`
OWN_STEPS = "own_steps.json"
MOST_OWN_STEPS_BYTES = 1000

Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Megabytes = Annotated[float, Meta(ge=0.0, le=1e9)]
Watts = Annotated[float, Meta(ge=0.0, le=1e5)]
Cpus = Annotated[float, Meta(ge=0.0, le=1e5)]
Samples = Annotated[float, Meta(gt=0.0, le=2.0**31)]


class OwnSteps(Value, frozen=True, kw_only=True):
    """Median of a worker's recent steps without the time in which it waited for other workers."""

    seconds: StepSeconds
    samples: Samples  # of this worker in one step


class SlotSample(Value, frozen=True, kw_only=True):
    """What a worker uses of one slot. None: not known."""

    launch: Name
    slot: WorkerName
    utilisation: Share | None = None  # of the GPU; of a CPU slot: of its share of the CPUs
    memory_mb: Megabytes | None = None  # on the GPU; of a CPU slot: of the worker's processes
    power_watts: Watts | None = None
    cpus: Cpus | None = None  # CPUs that the worker's processes keep busy
    own_steps: OwnSteps | None = None


_SAMPLES: Decoder[tuple[SlotSample, ...]] = Decoder(
    Annotated[tuple[SlotSample, ...], Meta(max_length=MOST_SAMPLES)]
)
_OWN_STEPS: Decoder[OwnSteps] = Decoder(OwnSteps)


def plain_samples(samples: Sequence[SlotSample]) -> list[dict[str, Any]]:
    """The samples as a node agent sends them."""
    plain: list[dict[str, Any]] = to_plain(list(samples))
    return plain


def samples_of(plain: object) -> tuple[SlotSample, ...]:
    """The samples of a message. Raises CodecError."""
    return _SAMPLES.convert(plain)


def own_steps_of(text: bytes) -> OwnSteps:
    """The content of the file. Raises CodecError."""
    return _OWN_STEPS.decode(text)
