"""Settings of `pollux`."""

from __future__ import annotations

from dataclasses import dataclass, field

from ones.models.goodput_rounds import RoundSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class PolluxSettings(RoundSettings):
    power: float = field(
        default=-1.0,
        metadata={"help": "p of the power mean of speed-ups; the lower, the fairer"},
    )
    members: int = field(default=100, metadata={"help": "candidates that the search keeps"})
    generations: int = field(default=100, metadata={"help": "generations of a round"})
    most_nodes: int = field(default=16, metadata={"help": "nodes that one job may be spread over"})

    def __post_init__(self) -> None:
        RoundSettings.__post_init__(self)
        for name, least in (("members", 2), ("generations", 1), ("most_nodes", 1)):
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} {getattr(self, name)} is not at least {least}")
        if self.members % 2:
            raise ValueError(f"members {self.members} is not even")
