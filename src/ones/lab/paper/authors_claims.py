"""Numbers of the results that the paper's authors published, and ranges for a replication.

The files hold 50 jobs of each of four schedulers. Which trace, version and machine made them is not
recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class TimeFigures(NamedTuple):
    """Seconds over the 50 jobs."""

    mean: float
    median: float
    p90: float
    longest: float


class AuthorsFigures(NamedTuple):
    """One result file in figures; they stand for the file where it is not given."""

    file: str
    completion: TimeFigures
    execution: TimeFigures
    queueing: TimeFigures
    within_200s: float


#: our name of the scheduler -> its file
AUTHORS: Mapping[str, AuthorsFigures] = {
    "ones-artifact": AuthorsFigures(
        "ONES_profile.csv", TimeFigures(214.0, 139, 393, 1609), TimeFigures(127.7, 58, 175, 1570),
        TimeFigures(86.2, 70, 155, 574), 0.78,
    ),
    "drl": AuthorsFigures(
        "DRL_profile.csv", TimeFigures(354.0, 173, 658, 3259), TimeFigures(208.4, 71, 387, 2346),
        TimeFigures(145.7, 100, 271, 913), 0.56,
    ),
    "optimus": AuthorsFigures(
        "OPTIMUS_profile.csv", TimeFigures(452.9, 316, 671, 4422),
        TimeFigures(260.0, 79, 372, 4335), TimeFigures(193.0, 223, 372, 417), 0.28,
    ),
    "tiresias": AuthorsFigures(
        "TIRESIAS_profile.csv", TimeFigures(501.7, 254, 485, 8133),
        TimeFigures(395.1, 154, 394, 8070), TimeFigures(106.6, 95, 244, 304), 0.32,
    ),
}  # fmt: skip

TRACE_NAME = "trace_1.csv"
JOBS = 50  # the first rows of the trace

#: orders of the schedulers, in the files and in the paper
COMPLETION_ORDER = ("ones-artifact", "drl", "optimus", "tiresias")
QUEUEING_ORDER = ("ones-artifact", "tiresias", "drl", "optimus")


class FirstFit(NamedTuple):
    """First-fit FIFO at requested sizes on the first 50 rows of the trace."""

    completion: float
    execution: float
    queueing: float
    within_200s: float


#: start-up seconds -> expected; computed from the recorded lengths without a simulator
FIRST_FIT: Mapping[float, FirstFit] = {
    0.0: FirstFit(386, 264, 122, 0.40),
    20.0: FirstFit(436, 284, 153, 0.26),
    30.0: FirstFit(463, 294, 169, 0.24),
}
FIRST_FIT_WITHIN = 0.05  # relative; of the share within 200 s: in points
REQUESTED_GPU_SECONDS = 126_000.0  # of the first 50 rows at requested sizes
REQUESTED_GPUS = 9.0  # their mean
MEAN_GAP = 30.0  # of the generator, seconds

#: ranges of the ratio of mean completion, ones-artifact to the rival
RATIOS: Mapping[str, tuple[float, float]] = {
    "drl": (0.55, 0.80),
    "optimus": (0.42, 0.65),
    "tiresias": (0.38, 0.62),
}
#: ranges of ones-artifact, by key of a row
RANGES: Mapping[str, tuple[float, float]] = {
    "mean_jct": (150.0, 320.0),
    "mean_exec": (90.0, 170.0),
    "mean_queue": (50.0, 120.0),
    "median_jct": (100.0, 200.0),
    "within_200s": (0.65, 0.90),
}
TIRESIAS_RANGE = (380.0, 550.0)  # of its mean completion

WARNINGS = (
    "The ids of the authors' result files are not rows of the trace: no result by kind can be"
    " compared.",
    "The files are not independent pairs (ONES and Optimus order all 50 jobs identically): compare"
    " them as distributions; paired tests on them carry no weight.",
    "Which trace, version, machine and rivals' settings made the files is not recorded.",
)
