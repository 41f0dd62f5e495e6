"""`ones paper sweeps`: comparisons beyond the paper, which show where `ones` leads and where not.

Each sweep stands for a few calls of `ones compare`. The most important sweep comes first, and the
seeds of a part go one by one through all its settings, so it can be stopped at any time.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from ones.errors import UnknownNameError
from ones.lab.comparison.grid import Cell, Grid
from ones.lab.comparison.variants import parse_variants
from ones.lab.runs import RunSpec
from ones.sim.perturbed import factors_of
from ones.workload.variations import JobShares

OURS = "ones"
RIVALS = (OURS, "equi", "sia")
BOTH = ("elastic", "checkpoint")  # the same cost of a change for all policies
#: values of `ageing`, and the one that `ones` has
DEFAULT_AGEING = 0.5
AGEING = (0.0, 0.25, 1.0, 2.0)
PREDICTION_ERRORS = (2, 4)
PHYSICS_CHANGES = ("noise=0.3", "noise=3", "network=0.3", "rescale=10")
#: physics against which the predictions of `ones` are of little use
HARD_PHYSICS = (
    "loss-noise=0.3", "loss-waves=0.3", "reported-noise=0.1", "reported-noise=10", "startup=5",
    "stragglers=3",
)  # fmt: skip
#: sigma of lengths: 90 % of the jobs of a kind are within 3 or 10 times its usual length
SPREADS = {3: 0.67, 10: 1.4}
HARD_SHARE = 0.2  # of jobs that are mislabelled, or killed midway
RIGID_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPart:
    """One `ones compare`."""

    policies: Sequence[str]
    seeds: int
    jobs: int
    scenario: str = ""  # what differs from the usual, in words
    given: Sequence[str] = ()
    gpus: int = 64
    mechanisms: Sequence[str] = BOTH
    loads: Sequence[float | None] = (1.0,)  # None: the paper's gap
    workload: str = "paper"
    scatter: float = RunSpec(policy="").scatter
    hide_kinds: bool = False
    own_kinds: bool = False
    left_out: str = ""  # kind that is left out
    shares: JobShares = field(default_factory=JobShares)
    physics: Sequence[str] = ()

    def cells(self, first_seed: int) -> list[Cell]:
        return Grid(
            variants=parse_variants(self.policies, given=self.given),
            seeds=range(first_seed, first_seed + self.seeds),
            gpus=[self.gpus],
            mechanisms=self.mechanisms,
            loads=self.loads,
            base=RunSpec(
                policy="",
                workload=self.workload,
                jobs=self.jobs,
                scatter=self.scatter,
                hide_kinds=self.hide_kinds,
                own_kinds=self.own_kinds,
                left_out=self.left_out,
                shares=self.shares,
                physics=factors_of(self.physics),
            ),
        ).cells()

    def command(self, first_seed: int, out: str) -> str:
        words = [
            "ones", "compare", "--policies", ",".join(self.policies), "--seeds", str(self.seeds),
            "--first-seed", str(first_seed), "--gpus", str(self.gpus), "--jobs", str(self.jobs),
            "--mechanism", ",".join(self.mechanisms),
        ]  # fmt: skip
        loads = ",".join(f"{load:g}" for load in self.loads if load is not None)
        words += ["--load", loads] if loads else []
        words += [] if self.workload == "paper" else ["--workload", self.workload]
        usual = self.scatter == RunSpec(policy="").scatter
        words += [] if usual else ["--scatter", f"{self.scatter:g}"]
        words += ["--hide-kinds"] if self.hide_kinds else []
        words += ["--own-kinds"] if self.own_kinds else []
        words += ["--leave-out", self.left_out] if self.left_out else []
        for name, share in asdict(self.shares).items():
            words += [f"--{name}", f"{share:g}"] if share else []
        words += [word for text in self.physics for word in ("--physics", text)]
        words += [word for text in self.given for word in ("--set", text)]
        return shlex.join([*words, "--out", out])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    name: str
    title: str
    question: str
    parts: Sequence[SweepPart]

    def cells(self, first_seed: int) -> list[Cell]:
        """Seed by seed, so that all parts have as many seeds when it is stopped."""
        found = [cell for part in self.parts for cell in part.cells(first_seed)]
        return sorted(found, key=lambda cell: cell.spec.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSize:
    """Seeds, jobs and cluster sizes."""

    seeds: int = 10
    large_seeds: int = 3  # from 256 GPUs up
    jobs: int = 200  # on up to 64 GPUs; the load of a shorter trace would mean nothing
    sizes: Sequence[int] = (16, 64, 256, 1024)

    def with_seeds(self, seeds: int | None) -> SweepSize:
        if seeds is None:
            return self
        return replace(self, seeds=seeds, large_seeds=min(seeds, self.large_seeds))


FULL = SweepSize()
QUICK = SweepSize(seeds=2, large_seeds=1, jobs=30, sizes=(16, 64))


def sweeps(size: SweepSize, traces: Sequence[Path] = ()) -> list[Sweep]:
    """All sweeps, the most important first; each trace of another cluster has its own."""
    usual = SweepPart(policies=RIVALS, seeds=size.seeds, jobs=size.jobs)
    return [
        Sweep(
            name="loads",
            title="Loads, with the same cost of a change for all",
            question="With one mechanism for all, the remaining lead is due to the policy.",
            parts=[replace(usual, loads=(0.5, 0.8, 1.0, 1.2))],
        ),
        Sweep(
            name="pollux",
            title="Against Pollux, with the same cost of a change for both",
            question="The search of Pollux takes longest, so there are only two loads.",
            parts=[replace(usual, loads=(0.8, 1.2), policies=(OURS, "pollux"))],
        ),
        Sweep(
            name="physics",
            title="Perturbed physics: does the lead depend on the numbers of our simulator?",
            question="Numbers of the simulator are multiplied. No policy knows the factors.",
            parts=[
                replace(usual, physics=(change,), scenario=change.replace("=", " x"))
                for change in PHYSICS_CHANGES
            ],
        ),
        Sweep(
            name="predictor",
            title="A predictor with errors",
            question="For half of the jobs the predicted remaining work is wrong by a factor above"
            " 2 or 4, in addition to the predictor's own errors.",
            parts=[_wrong_predictions(usual)],
        ),
        Sweep(
            name="kinds",
            title="Kinds hidden or never repeated, and lengths that scatter",
            question="How much the lead depends on knowing the kind of a job.",
            parts=[
                replace(usual, hide_kinds=True, scenario="kinds hidden"),
                replace(usual, own_kinds=True, scenario="own kinds"),
                *(
                    replace(usual, scatter=scatter, scenario=f"scatter {scatter:g}")
                    for scatter in (0.0, 0.3, 0.6)
                ),
            ],
        ),
        Sweep(
            name="harder",
            title="Physics and jobs that hurt predictions",
            question="Noisy and rising losses, wrong noise scales, slow starts, slow nodes, wrong"
            " labels, jobs that end midway, and lengths that spread within a kind.",
            parts=harder(usual),
        ),
        Sweep(
            name="rigid",
            title="Rigid jobs among elastic ones",
            question="With rigid jobs only, no policy can change a job once it runs.",
            parts=rigid_mixes(usual, RIGID_SHARES),
        ),
        *(
            Sweep(
                name=f"trace-{path.stem}",
                title=f"Arrivals and sizes of {path.name}",
                question="Jobs of another cluster, mapped to ours and stretched to the same loads.",
                parts=[replace(usual, workload=str(path), loads=(0.8, 1.0, 1.2))],
            )
            for path in traces
        ),
        Sweep(
            name="frontier",
            title="Fairness: the mean against the slowest",
            question="The setting `ageing` moves `ones` along a line;"
            f" its default is {DEFAULT_AGEING:g}.",
            parts=[_ageing_line(usual)],
        ),
        Sweep(
            name="sizes",
            title="Cluster sizes",
            question="Does the lead shrink, and what does the policy itself cost?",
            parts=[_at_size(usual, size, gpus) for gpus in size.sizes],
        ),
    ]


def harder(usual: SweepPart) -> list[SweepPart]:
    """The part with each of the hard conditions."""
    return [
        *(
            replace(usual, physics=(change,), scenario=change.replace("=", " "))
            for change in HARD_PHYSICS
        ),
        replace(usual, shares=JobShares(mislabelled=HARD_SHARE), scenario="20 % mislabelled"),
        replace(usual, shares=JobShares(killed=HARD_SHARE), scenario="20 % killed"),
        *(
            replace(usual, scatter=scatter, scenario=f"lengths within {times} times")
            for times, scatter in SPREADS.items()
        ),
    ]


def rigid_mixes(usual: SweepPart, shares: Sequence[float]) -> list[SweepPart]:
    return [
        replace(
            usual, shares=JobShares(rigid=share), scenario=f"{share:.0%} rigid".replace("%", " %")
        )
        for share in shares
    ]


def _wrong_predictions(usual: SweepPart) -> SweepPart:
    wrong = {error: f"{OURS}:error-{error}" for error in PREDICTION_ERRORS}
    return replace(
        usual,
        loads=(0.8, 1.2),
        mechanisms=("elastic",),
        policies=(OURS, *wrong.values(), "pollux"),
        given=[f"{label}.prediction_error={error}" for error, label in wrong.items()],
    )


def _ageing_line(usual: SweepPart) -> SweepPart:
    labels = {value: f"{OURS}:ageing-{value:g}" for value in AGEING}
    before = [label for value, label in labels.items() if value < DEFAULT_AGEING]
    after = [label for value, label in labels.items() if value > DEFAULT_AGEING]
    return replace(
        usual,
        policies=(*before, OURS, *after, "equi", "sia"),
        given=[f"{label}.ageing={value:g}" for value, label in labels.items()],
        mechanisms=("elastic",),
    )


def _at_size(usual: SweepPart, size: SweepSize, gpus: int) -> SweepPart:
    """A trace of the same length on a cluster of another size."""
    return replace(
        usual,
        gpus=gpus,
        jobs=max(size.jobs, size.jobs * gpus // 64),
        seeds=size.seeds if gpus < 256 else size.large_seeds,
        mechanisms=("elastic",),
    )


def select_sweeps(found: Sequence[Sweep], names: Sequence[str]) -> list[Sweep]:
    """The sweeps with these names, or all."""
    known = {sweep.name: sweep for sweep in found}
    for name in names:
        if name not in known:
            raise UnknownNameError("sweep", name, known)
    return [sweep for sweep in found if not names or sweep.name in names]


def commands(found: Sequence[Sweep], first_seed: int, out: str) -> Iterator[str]:
    for sweep in found:
        yield f"# {sweep.name}: {sweep.title}"
        for part in sweep.parts:
            yield part.command(first_seed, out)
