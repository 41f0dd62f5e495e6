"""Numbers of the paper's text, in seconds and percent.

Figures without a number in the text have none here, because the images are not in our source.
"""

from __future__ import annotations

from collections.abc import Mapping

NO_NUMBER = "no number in the text"

#: the paper's names for its schedulers, and ours
SCHEDULERS: Mapping[str, str] = {
    "ONES": "ones", "DRL": "drl", "Tiresias": "tiresias", "Optimus": "optimus",
}  # fmt: skip
RIVALS = ("drl", "tiresias", "optimus")

MEAN_JCT = 244.97  # of ONES, "the smallest average JCT of 244.97s"
#: "reduce the average JCT by 26.9%, 45.6% and 41.7%"
JCT_REDUCTION = {"drl": 26.9, "tiresias": 45.6, "optimus": 41.7}
#: what follows from the two
IMPLIED_JCT = {rival: MEAN_JCT / (1 - percent / 100) for rival, percent in JCT_REDUCTION.items()}
#: "reduce 53.9% execution time"; of the others: "smaller execution time than both"
EXECUTION_REDUCTION = {"tiresias": 53.9}
#: "improves the DRL scheduler by 31.3%, Tiresias by 19.1%, and Optimus by 56.6%"
QUEUEING_REDUCTION = {"drl": 31.3, "tiresias": 19.1, "optimus": 56.6}
#: "the fraction of jobs completed within 200s is 86%", the others "about 60-80%"
WITHIN_200S = 0.86
WITHIN_200S_RIVALS = (0.60, 0.80)
#: "Basically all the jobs is completed under 2k seconds"; others have jobs "up 10k seconds"
LONGEST_EXECUTION = 2_000.0
LONGEST_EXECUTION_RIVALS = 10_000.0
#: Wilcoxon: two-sided, and "one-sided negative"
P_TWO_SIDED = {"drl": 5.17e-4, "tiresias": 4.53e-8, "optimus": 7.55e-10}
P_NEGATIVE = {"drl": 0.99974, "tiresias": 0.99999, "optimus": 0.99999}
#: "basically around 1 second", "can be greater than 20 seconds"
ELASTIC_SECONDS, CHECKPOINT_SECONDS = 1.0, 20.0
#: "from 19%/44%/24% to 27%/46%/42%", 16 to 64 GPUs
SIZES = (16, 32, 48, 64)
IMPROVEMENT = {
    16: {"drl": 19.0, "tiresias": 44.0, "optimus": 24.0},
    64: {"drl": 27.0, "tiresias": 46.0, "optimus": 42.0},
}
#: "when the number of workers exceeds 2, the throughput no longer increases and starts to drop"
FIXED_BATCH_PEAK = 2
#: strategy, preemption, elastic size, elastic batch
PROPERTIES: Mapping[str, tuple[str, str, str, str]] = {
    "ones": ("dynamic", "yes", "yes", "yes"),
    "ones-paper": ("dynamic", "yes", "yes", "yes"),
    "drl": ("dynamic", "no", "yes", "no"),
    "tiresias": ("greedy", "yes", "no", "no"),
    "optimus": ("greedy", "yes", "yes", "no"),
}
