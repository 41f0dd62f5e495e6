"""Settings of `pollux`."""

from __future__ import annotations

from dataclasses import dataclass

from ones.models.goodput_rounds import RoundSettings
from ones.models.settings import check_settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class PolluxSettings(RoundSettings):
    power: float = setting(-1.0, "exponent p of the power mean of speed-ups; lower is fairer")
    members: int = setting(100, "candidates in the population", least=2)
    generations: int = setting(100, "generations per round", least=1)
    most_nodes: int = setting(16, "maximum nodes of one job", least=1)

    def __post_init__(self) -> None:
        check_settings(self)
        if self.members % 2:
            raise ValueError(f"members {self.members} is not even")
