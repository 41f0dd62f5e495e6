"""Settings of `pollux`."""

from __future__ import annotations

from dataclasses import dataclass, field

from ones.models.goodput_rounds import RoundSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class PolluxSettings(RoundSettings):
    power: float = field(
        default=-1.0,
        metadata={"help": "exponent p of the power mean of speed-ups; lower is fairer"},
    )
    members: int = field(default=100, metadata={"help": "candidates in the population"})
    generations: int = field(default=100, metadata={"help": "generations per round"})
    most_nodes: int = field(default=16, metadata={"help": "maximum nodes of one job"})

    def __post_init__(self) -> None:
        RoundSettings.__post_init__(self)
        for name, least in (("members", 2), ("generations", 1), ("most_nodes", 1)):
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} {getattr(self, name)} is not at least {least}")
        if self.members % 2:
            raise ValueError(f"members {self.members} is not even")
