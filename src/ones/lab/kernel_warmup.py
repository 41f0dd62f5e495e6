"""Compiles the kernels of a policy before the service needs its decisions.

The first run of some policies on a machine compiles for 15 s or more; later runs read the cache.
A service would not answer in that time, so a tiny simulated run compiles them before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ones.lab.runs import Run, RunSpec


def warm_up(policy: str, settings: Mapping[str, Any] | None = None) -> None:
    """Simulates two jobs on four GPUs: every kind of event and decision, in about a second."""
    spec = RunSpec(
        policy=policy, settings=settings or {}, gpus=4, gpus_per_node=4, jobs=2, gap=5.0, seed=1,
        mechanism="elastic",
    )  # fmt: skip
    Run(spec).carry_out()
