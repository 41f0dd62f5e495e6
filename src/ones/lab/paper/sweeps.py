"""Beyond the paper: the comparisons that show where `ones` leads, and where it would not.

Each sweep is a few calls of `ones compare`, in order of importance: stopped at any time, what is
there is the most telling part. Seeds of a part go one by one through all its settings.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ones.errors import UnknownNameError
from ones.lab.entrants import entrants
from ones.lab.grid import Cell, Grid
from ones.lab.runs import RunSpec
from ones.sim.altered import factors_of

OURS = "ones"
RIVALS = (OURS, "equi", "sia")
BOTH = ("elastic", "checkpoint")  # the same price for everybody
#: values of `seniority`, and the one that `ones` has
DEFAULT_SENIORITY = 0.5
SENIORITY = (0.0, 0.25, 1.0, 2.0)
PREDICTION_ERRORS = (2, 4)
WORLDS = ("noise=0.3", "noise=3", "network=0.3", "rescale=10")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One `ones compare`."""

    policies: Sequence[str]
    seeds: int
    jobs: int
    world: str = ""  # what is not as usual, in words
    given: Sequence[str] = ()
    gpus: int = 64
    mechanisms: Sequence[str] = BOTH
    loads: Sequence[float] = (1.0,)
    workload: str = "paper"
    scatter: float = RunSpec(policy="").scatter
    hide_kinds: bool = False
    physics: Sequence[str] = ()

    def cells(self, first_seed: int) -> list[Cell]:
        return Grid(
            entrants=entrants(self.policies, given=self.given),
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
                physics=factors_of(self.physics),
            ),
        ).cells()

    def command(self, first_seed: int, out: str) -> str:
        words = [
            "ones", "compare", "--policies", ",".join(self.policies), "--seeds", str(self.seeds),
            "--first-seed", str(first_seed), "--gpus", str(self.gpus), "--jobs", str(self.jobs),
            "--mechanism", ",".join(self.mechanisms),
            "--load", ",".join(f"{load:g}" for load in self.loads),
        ]  # fmt: skip
        words += [] if self.workload == "paper" else ["--workload", self.workload]
        usual = self.scatter == RunSpec(policy="").scatter
        words += [] if usual else ["--scatter", f"{self.scatter:g}"]
        words += ["--hide-kinds"] if self.hide_kinds else []
        words += [word for text in self.physics for word in ("--physics", text)]
        words += [word for text in self.given for word in ("--set", text)]
        return shlex.join([*words, "--out", out])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    name: str
    title: str
    question: str
    parts: Sequence[Part]

    def cells(self, first_seed: int) -> list[Cell]:
        """Seed by seed, so that all parts are as far when it is stopped."""
        found = [cell for part in self.parts for cell in part.cells(first_seed)]
        return sorted(found, key=lambda cell: cell.spec.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """How much of each."""

    seeds: int = 10
    large_seeds: int = 3  # from 256 GPUs up
    jobs: int = 200  # on up to 64 GPUs; a load means nothing on a trace of ten minutes
    sizes: Sequence[int] = (16, 64, 256, 1024)

    def with_seeds(self, seeds: int | None) -> Depth:
        if seeds is None:
            return self
        return replace(self, seeds=seeds, large_seeds=min(seeds, self.large_seeds))


FULL = Depth()
QUICK = Depth(seeds=2, large_seeds=1, jobs=30, sizes=(16, 64))


def sweeps(depth: Depth, traces: Sequence[Path] = ()) -> list[Sweep]:
    """All of them, the most important first; traces of other clusters have a sweep each."""
    return [
        _loads(depth),
        _pollux(depth),
        _worlds(depth),
        _predictor(depth),
        _kinds(depth),
        *(_trace(depth, path) for path in traces),
        _frontier(depth),
        _sizes(depth),
    ]


def _usual(depth: Depth) -> Part:
    return Part(policies=RIVALS, seeds=depth.seeds, jobs=depth.jobs)


def _loads(depth: Depth) -> Sweep:
    return Sweep(
        name="loads",
        title="Loads, everybody paying the same for a change",
        question="With one mechanism for all, what is left of the lead is the policy's.",
        parts=[replace(_usual(depth), loads=(0.5, 0.8, 1.0, 1.2))],
    )


def _pollux(depth: Depth) -> Sweep:
    part = replace(_usual(depth), loads=(0.8, 1.2))
    return Sweep(
        name="pollux",
        title="Against Pollux, everybody paying the same for a change",
        question="Its search takes longest, so it is asked at two loads.",
        parts=[replace(part, policies=(OURS, "pollux"))],
    )


def _worlds(depth: Depth) -> Sweep:
    return Sweep(
        name="physics",
        title="Other worlds: is the lead owed to our own physics?",
        question="The truth of the simulator is multiplied, and no policy is told.",
        parts=[
            replace(_usual(depth), physics=(world,), world=world.replace("=", " x"))
            for world in WORLDS
        ],
    )


def _predictor(depth: Depth) -> Sweep:
    wrong = [f"{OURS}:error-{error}" for error in PREDICTION_ERRORS]
    given = [f"{OURS}:error-{error}.prediction_error={error}" for error in PREDICTION_ERRORS]
    part = replace(_usual(depth), loads=(0.8, 1.2), mechanisms=("elastic",))
    return Sweep(
        name="predictor",
        title="A predictor that errs",
        question="What is left of half of the jobs is misjudged by more than 2 and 4 times, on top"
        " of the predictor's own errors.",
        parts=[replace(part, policies=(OURS, *wrong, "pollux"), given=given)],
    )


def _kinds(depth: Depth) -> Sweep:
    usual = _usual(depth)
    return Sweep(
        name="kinds",
        title="Kinds hidden, and lengths that scatter",
        question="How much rests on knowing jobs by their kind.",
        parts=[
            replace(usual, hide_kinds=True, world="kinds hidden"),
            *(
                replace(usual, scatter=scatter, world=f"scatter {scatter:g}")
                for scatter in (0.0, 0.3, 0.6)
            ),
        ],
    )


def _trace(depth: Depth, path: Path) -> Sweep:
    return Sweep(
        name=f"trace-{path.stem}",
        title=f"Arrivals and sizes of {path.name}",
        question="Jobs of another cluster, mapped to ours and stretched to the same loads.",
        parts=[replace(_usual(depth), workload=str(path), loads=(0.8, 1.0, 1.2))],
    )


def _frontier(depth: Depth) -> Sweep:
    labels = {value: f"{OURS}:seniority-{value:g}" for value in SENIORITY}
    before = [label for value, label in labels.items() if value < DEFAULT_SENIORITY]
    after = [label for value, label in labels.items() if value > DEFAULT_SENIORITY]
    part = replace(
        _usual(depth),
        policies=(*before, OURS, *after, "equi", "sia"),
        given=[f"{label}.seniority={value:g}" for value, label in labels.items()],
        mechanisms=("elastic",),
    )
    return Sweep(
        name="frontier",
        title="Fairness: the mean against the slowest",
        question="The setting `seniority` moves `ones` along a line;"
        f" its default is {DEFAULT_SENIORITY:g}.",
        parts=[part],
    )


def _sizes(depth: Depth) -> Sweep:
    def part(gpus: int) -> Part:
        return replace(
            _usual(depth),
            gpus=gpus,
            jobs=max(depth.jobs, depth.jobs * gpus // 64),  # as long a trace on a larger cluster
            seeds=depth.seeds if gpus < 256 else depth.large_seeds,
            mechanisms=("elastic",),
        )

    return Sweep(
        name="sizes",
        title="Cluster sizes",
        question="Does the lead shrink, and what does the policy itself cost?",
        parts=[part(gpus) for gpus in depth.sizes],
    )


def chosen(found: Sequence[Sweep], names: Sequence[str]) -> list[Sweep]:
    """Those that are named, or all."""
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
