"""What a job of the acceptance run trains, and which fault happens in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

VARIABLE = "ONES_ACCEPTANCE"
OUT = "ONES_ACCEPTANCE_OUT"  # the directory for notes and the result

#: what a drill does in its worker
KILL, STOP, OUT_OF_MEMORY, DEVICE_ASSERT = "kill", "stop", "out of memory", "device assert"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    fault: str
    worker: str = "local/1"
    step: int = 6  # from here on, at the first step with two workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`tolerance`: largest difference from one process, relative to how far parameters moved."""

    optimizer: str = "sgd"  # or adamw
    variant: str = ""  # foreach, fused or capturable
    dtype: str = "float64"
    autocast: str = ""  # bfloat16, or float16 with a gradient scaler
    layers: str = "linear"  # or conv
    channels_last: bool = False
    sync_norm: bool = False
    compiled: str = ""  # the backend of torch.compile
    tolerance: float = 1e-9
    width: int = 400  # of the linear layers: several gradient buckets
    nap_seconds: float = 0.01  # after each step
    batch: int = 16
    samples: int = 160
    most_steps: int = 3000  # the job ends after as many, whatever happens
    drill: Drill | None = None
    compare_with_ddp: bool = False
    count_waits: bool = False

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Case:
        values: dict[str, Any] = json.loads(text)
        drill: Mapping[str, Any] | None = values.pop("drill")
        return cls(**values, drill=None if drill is None else Drill(**drill))
