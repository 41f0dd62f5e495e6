"""Compile a policy's kernels before anybody waits for its decisions.

The first run of some policies on a machine compiles for a quarter of a minute or more; later
ones read what was kept. A service that did this while it schedules would answer nobody, so a
tiny simulated run does it first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ones.lab.runs import Run, RunSpec


def warm_up(policy: str, settings: Mapping[str, Any] | None = None) -> None:
    """Two jobs on four GPUs: every kind of event and decision, in about a second."""
    spec = RunSpec(
        policy=policy, settings=settings or {}, gpus=4, gpus_per_node=4, jobs=2, gap=5.0, seed=1,
        mechanism="elastic",
    )  # fmt: skip
    Run(spec).carry_out()
