"""The settings of `ones`.

Numbers in brackets are items of the critical reading of the paper, docs/paper.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from ones.models.settings import check_settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class OnesSettings:
    # predict
    draws: int = setting(16, "draws of every job's progress (4)", least=1)
    prediction_error: float = setting(
        1.0,
        "for tests: the remaining work of half of the jobs is wrong by more than this factor",
        least=1,
    )
    # score
    ageing: float = setting(
        0.5, "weight of a job's age, relative to its length and to the mean length", least=0
    )
    change_worth: float = setting(2.0, "a change must save this many times its cost", least=0)
    stay_share: float = setting(
        0.4,
        "expected time until the next change, as a part of the mean time from start to end",
        least=0.01,
    )
    epoch_growth: float = setting(
        4.0, "largest factor by which a batch grows within an epoch (36)", least=1
    )
    most_base_batches: int = setting(
        32, "largest batch, as a multiple of the base batch (35)", least=1
    )
    exploration: float = setting(
        8.0, "largest number of GPUs, as a multiple of the largest number tried (33)", least=1
    )
    most_gpus: int = setting(64, "largest number of GPUs of a job", least=1)
    # place
    population: int = setting(64, "candidate schedules, at most one for each GPU (26)", least=2)
    generations: int = setting(5, "generations after an event (26)", least=0)
    spacing: float = setting(5.0, "least seconds between two updates (28)", least=0)

    def __post_init__(self) -> None:
        check_settings(self)
