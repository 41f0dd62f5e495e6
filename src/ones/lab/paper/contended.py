"""The contended workload: a load at which jobs queue, chosen by `fifo` and `tiresias` alone.

The paper's 50 jobs on 64 GPUs do not queue under either, whatever the arrival rate. 200 jobs do.
No run of `ones` takes part in the choice. docs/calibration.md has the measured values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

JOBS = 200
#: of which the smallest that meets the rule is taken
LOADS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2.0)
MIN_QUEUE_SHARE = 0.20  # of the mean completion time under fifo
MIN_DIFFERENCE = 0.10  # of the mean completion time, tiresias below fifo

#: the choice of the rule on the calibration seeds
LOAD = 1.0
#: 79 % of the work of the paper's jobs
DOMINATING_KIND = "vgg16-imagenet"
#: the same without the dominating kind: by queueing alone, because lengths differ too little for
#: tiresias to gain a tenth at any load
LOAD_WITHOUT = 1.3


def contended_load(
    summary: Iterable[Mapping[str, Any]], *, min_difference: float = MIN_DIFFERENCE
) -> float | None:
    """The smallest load with enough queueing and difference, from the summary of a comparison."""
    means: dict[float, dict[str, Mapping[str, Any]]] = {}
    for row in summary:
        means.setdefault(row["load"], {})[row["label"]] = row
    for load in sorted(means):
        fifo, tiresias = means[load]["fifo"], means[load]["tiresias"]
        queues = fifo["mean_queue"] > MIN_QUEUE_SHARE * fifo["mean_jct"]
        differs = tiresias["mean_jct"] <= (1 - min_difference) * fifo["mean_jct"]
        if queues and (differs or min_difference <= 0):
            return load
    return None
