"""What can be chosen about `pollux`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class PolluxSettings:
    interval: float = field(default=60.0, metadata={"help": "seconds from round to round"})
    power: float = field(
        default=-1.0,
        metadata={"help": "p of the power mean of speed-ups; the lower, the fairer"},
    )
    members: int = field(default=100, metadata={"help": "candidates that the search keeps"})
    generations: int = field(default=100, metadata={"help": "generations of a round"})
    restart_seconds: float = field(
        default=0.0,
        metadata={
            "help": "what a change of GPUs is taken to cost a job;"
            " 0: what changes have cost it so far (published: 30)"
        },
    )
    most_nodes: int = field(default=16, metadata={"help": "nodes that one job may be spread over"})
    most_batch: float = field(
        default=32.0, metadata={"help": "largest batch, in times the base batch"}
    )
    least_local_batch: int = field(
        default=1, metadata={"help": "fewest samples on a GPU in one step"}
    )
    two_parts_alone: bool = field(
        default=False,
        metadata={
            "help": "a batch beyond the base one comes in two parts on one GPU, as the published"
            " trainer needs to measure its noise"
        },
    )
    batch_gain: float = field(
        default=0.05, metadata={"help": "gain in goodput that is worth changing only the batch"}
    )
    batch_growth: float = field(
        default=4.0,
        metadata={"help": "most that a batch grows from one epoch to the next (published: inf)"},
    )
    start_at_once: bool = field(
        default=False,
        metadata={"help": "a new job gets free GPUs at once, its least, and not in the next round"},
    )

    def __post_init__(self) -> None:
        for name, least in (
            ("interval", 1.0),
            ("members", 2),
            ("generations", 1),
            ("restart_seconds", 0.0),
            ("most_nodes", 1),
            ("most_batch", 1.0),
            ("least_local_batch", 1),
            ("batch_gain", 0.0),
            ("batch_growth", 1.0),
        ):
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} {getattr(self, name)} is not at least {least}")
        if self.members % 2:
            raise ValueError(f"members {self.members} is not even")
