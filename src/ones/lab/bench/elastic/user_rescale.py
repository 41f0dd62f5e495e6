"""`ones bench rescale --unix`: the pause of a job with and without ones-launchd, in turns."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from ones.extras import require
from ones.lab.bench.elastic.as_user import jobs_of_user
from ones.lab.bench.elastic.medians import difference_of, median_of
from ones.lab.bench.elastic.rescale import (
    CHAIN,
    SIZES,
    MeasuredPauses,
    RescaleModel,
    Table,
    in_place,
    rows_of,
    steps_between,
)

LAUNCHD = "launchd"
#: each start goes through all changes twice: starts take longer than changes
TWICE = (*CHAIN, *CHAIN[1:])
STARTS = 10


def bench_rescale_as_user(
    user: str,
    sizes: Sequence[float] = SIZES,
    *,
    repeats: int = STARTS,
    chain: Sequence[int] = TWICE,
    progress: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """A row for each size and change: as the user of this process, and through ones-launchd."""
    require("ones bench rescale", "torch")
    rows = []
    with jobs_of_user(user) as jobs:
        for megabytes in sizes:
            model, table, loads = RescaleModel.of(megabytes), Table(), [os.getloadavg()[0]]
            for repeat in range(repeats):
                # in turns: the load changes, and the first of two runs is the slower one
                for through in ((False, True), (True, False))[repeat % 2]:
                    directory = jobs.directory / f"{megabytes:g}-{repeat}-{through}"
                    for pause, parts in in_place(
                        model, chain, steps_between(model), directory, jobs if through else None
                    ):
                        key = (LAUNCHD if through else "", pause.before, pause.after)
                        table.setdefault(key, MeasuredPauses()).add(pause, {} if through else parts)
                loads.append(os.getloadavg()[0])
                progress(f"{megabytes:g} MB: {repeat + 1} of {repeats}")
            rows += [
                {**row, **intervals_of(table, row["change"])}
                for row in rows_of(megabytes, model, table, fmean(loads))
            ]
    return rows


def intervals_of(table: Table, change: str) -> dict[str, float]:
    """Medians with 95 % intervals, and what ones-launchd adds to the median."""
    before, after = map(int, change.split("->"))
    ours, theirs = (
        [1000 * pause.seconds for pause in table[mechanism, before, after].pauses]
        for mechanism in ("", LAUNCHD)
    )
    found = {
        "median_ms": median_of(ours),
        "rival_median_ms": median_of(theirs),
        "more_ms": difference_of(theirs, ours),
    }
    return {
        f"{name}{suffix}": round(value, 2)
        for name, interval in found.items()
        for suffix, value in zip(("", "_low", "_high"), interval, strict=True)
    }
