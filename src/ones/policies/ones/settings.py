"""The settings of `ones`.

The numbers are those of the critical reading in docs/paper.md: 1 to 11 score and
throughput, 12 to 19 prediction, 20 to 27 operators, 28 and 29 update, 30 to 37 limits.
"""

from __future__ import annotations

from dataclasses import dataclass, field


def _choice(default: str, options: tuple[str, ...], help_: str) -> str:
    choice: str = field(default=default, metadata={"help": help_, "options": options})
    return choice


@dataclass(frozen=True, slots=True, kw_only=True)
class OnesSettings:
    # score
    to_come: float = field(
        default=0.5,
        metadata={
            "help": "flow: jobs that are expected to come, for each that is here; the more, the"
            " more it counts to use GPUs well"
        },
    )
    ageing: float = field(
        default=0.5,
        metadata={"help": "flow: how much it counts to be here for long, for one's length"},
    )
    seniority: float = field(
        default=0.5,
        metadata={
            "help": "flow: how much it counts to be here for long, for the length of all jobs; more"
            " serves the slowest, less the short ones"
        },
    )
    stay_share: float = field(
        default=0.4,
        metadata={
            "help": "flow: how long a job is expected to stay as it is, for the time that jobs"
            " usually take from their start to their end"
        },
    )
    grown_share: float = field(
        default=0.25,
        metadata={"help": "flow: how long it is expected to keep what it grows by, as above"},
    )
    change_worth: float = field(
        default=2.0, metadata={"help": "flow: times what a change costs, that it must save"}
    )
    draws: int = field(default=16, metadata={"help": "4: draws of every job's progress"})
    switching_cost: bool = field(
        default=True, metadata={"help": "5: what a change costs is part of the score"}
    )
    throughput: str = _choice(
        "fitted", ("fitted", "per-gpu"), "8: a fitted step-time model, or the measured rate per GPU"
    )
    effective: bool = field(
        default=True,
        metadata={"help": "work is counted in effective samples, by the gradient noise scale"},
    )
    batch: str = _choice(
        "goodput",
        ("goodput", "limit"),
        "20: the batch with the best goodput under the limit, or the limit itself",
    )
    # prediction
    link: str = _choice("softplus", ("softplus", "max"), "14: threshold of the Beta regression")
    kinds: bool = field(default=True, metadata={"help": "15: the kind of a job is a feature"})
    temper: bool = field(
        default=True, metadata={"help": "16: widen predictions to 90 % coverage of 90 % intervals"}
    )
    cold_start_epochs: int = field(
        default=30, metadata={"help": "17: expected epochs when nothing is known and declared"}
    )
    trust_declared: bool = field(
        default=True,
        metadata={"help": "17: declared epochs are right where no accuracy or patience ends a job"},
    )
    overruns: bool = field(
        default=True,
        metadata={"help": "17: the first of a kind, having outlived forecasts, has more to come"},
    )
    prediction_error: float = field(
        default=1.0,
        metadata={"help": "for tests: what is left of half of the jobs is misjudged by more"},
    )
    # search
    sizes: str = _choice(
        "tried",
        ("tried", "limit"),
        "33: GPUs by what its kind has tried, or one for each base batch of the limit",
    )
    exploration: float = field(
        default=8.0, metadata={"help": "33: GPUs that a job may be given, over what was tried"}
    )
    seeds: bool = field(
        default=True, metadata={"help": "26: the exact division joins the population"}
    )
    population: int = field(
        default=64, metadata={"help": "26: schedules, at most as many as GPUs; 0: just as many"}
    )
    generations: int = field(default=5, metadata={"help": "26: generations after an event"})
    idle_generations: int = field(
        default=1, metadata={"help": "26: generations a second between events"}
    )
    candidates: int = field(
        default=16, metadata={"help": "27: members of the population that are placed, to compare"}
    )
    patience: int = field(
        default=20, metadata={"help": "generations without improvement that end the search"}
    )
    fill_waiting_first: bool = field(
        default=True, metadata={"help": "23: waiting jobs fill idle GPUs before others grow"}
    )
    # update
    spacing: float = field(default=5.0, metadata={"help": "28: seconds between two updates"})
    thinking: float = field(
        default=0.0005,
        metadata={"help": "28: seconds between two looks at all jobs, for each of them"},
    )
    least_stay: float = field(
        default=60.0, metadata={"help": "28: of an epoch, what a job stays until it may lose GPUs"}
    )
    least_run: float = field(
        default=20.0,
        metadata={"help": "28: times what a restart costs, that a job runs before it is sent away"},
    )
    # limits
    scale_down: str = _choice(
        "repaired", ("repaired", "printed", "never"), "30: how long jobs lose batch"
    )
    sigma: str = _choice(
        "per-gpu", ("per-gpu", "arrivals"), "31: arrival rate by GPU, or as printed"
    )
    shrink_only_when_waiting: bool = field(
        default=True, metadata={"help": "31: long jobs lose batch only while somebody waits"}
    )
    trust_requested: bool = field(
        default=True, metadata={"help": "34: the limit starts at the batch that the user asked for"}
    )
    warmup_steps: int = field(
        default=20, metadata={"help": "34: steps on one GPU before a job may grow"}
    )
    growth: float = field(default=2.0, metadata={"help": "36: factor by which the limit grows"})
    ripening: float = field(
        default=10.0,
        metadata={"help": "36: seconds, and 20 steps, after which the limit grows; 0: an epoch"},
    )
    epoch_growth: float = field(
        default=4.0, metadata={"help": "36: most that a batch grows within an epoch"}
    )
    most_base_batches: int = field(
        default=32, metadata={"help": "35: no batch beyond so many base batches"}
    )
    least_steps: int = field(
        default=10, metadata={"help": "35: no batch with fewer steps to an epoch than these"}
    )
    most_gpus: int = field(default=64, metadata={"help": "no job gets more GPUs than these"})

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            options = self.__dataclass_fields__[name].metadata.get("options")
            if options is not None and value not in options:
                raise ValueError(f"{name} {value!r} is not one of {', '.join(options)}")
        for name, least in _LEAST.items():
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} {getattr(self, name)} is not at least {least}")


_LEAST = {
    "to_come": 0, "ageing": 0, "seniority": 0, "change_worth": 0, "least_run": 0, "exploration": 1,
    "stay_share": 0.01, "grown_share": 0.01, "ripening": 0, "epoch_growth": 1,
    "draws": 1, "cold_start_epochs": 1, "population": 0, "generations": 0,
    "idle_generations": 0, "patience": 1, "spacing": 0, "thinking": 0, "least_stay": 0,
    "warmup_steps": 0, "growth": 1, "prediction_error": 1, "most_base_batches": 1,
    "least_steps": 1, "most_gpus": 1, "candidates": 1,
}  # fmt: skip
