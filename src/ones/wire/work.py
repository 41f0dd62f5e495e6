"""The work of a job: its unit of progress, how much is done, and how much there is."""

from __future__ import annotations

from enum import StrEnum

from ones.wire.bounds import Number, Positive, Value


class Unit(StrEnum):
    """What the loop of a script counts. A step is one of the script's own batch size."""

    EPOCHS = "epochs"
    STEPS = "steps"
    SAMPLES = "samples"
    TOKENS = "tokens"


class Work(Value, frozen=True, omit_defaults=False):
    unit: Unit
    done: Number  # since the job's first step
    total: Positive | None = None  # None: not known
