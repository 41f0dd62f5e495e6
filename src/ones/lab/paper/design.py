"""The runs of the evaluation, quick or full, and the strongest variant of each rival."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ones.lab.comparison.grid import Cell, Grid
from ones.lab.comparison.summary import Record
from ones.lab.comparison.variants import Variant, named_variants, parse_variants
from ones.lab.paper import ablation, claims, contended, readings
from ones.lab.paper.tuned import TUNED, TUNED_CONTENDED, Tuned, tuned_labels
from ones.lab.runs import RunSpec
from ones.policies import names

FIRST_SEED = 1000  # 1 to 99 were used for calibration
#: in the order of the tables
SCHEDULERS = ("ones", "ones-paper", "drl", "tiresias", "optimus", "pollux", "sia", "equi", "fifo")
#: policies that know the true length of every job: bounds, not rivals
ORACLES = ("srtf", "srsf")
MECHANISMS = ("native", "elastic", "checkpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSize:
    """Seeds of each part, and jobs where they are fewer than the paper's 50."""

    seeds: int
    jobs: int = 50
    variants: bool = True
    mechanism_seeds: int
    scaling_seeds: int
    sizes: Sequence[int] = claims.SIZES
    ablation_seeds: int
    ablation_jobs: int = 50
    leave_one_out: bool = True
    reading_seeds: int = 0  # 0: no band of readings
    prediction_seeds: int
    contended_seeds: int
    contended_jobs: int = contended.JOBS
    without_dominating: bool = True


FULL = EvaluationSize(
    seeds=10, mechanism_seeds=10, scaling_seeds=10, ablation_seeds=10, reading_seeds=10,
    prediction_seeds=3, contended_seeds=5,
)  # fmt: skip
QUICK = EvaluationSize(
    seeds=2, variants=False, mechanism_seeds=1, scaling_seeds=1, sizes=(16, 64),
    ablation_seeds=1, ablation_jobs=20, leave_one_out=False, prediction_seeds=1,
    contended_seeds=1, contended_jobs=60, without_dominating=False,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Design:
    """The parts. `mechanisms` and `scaling` depend on the strongest variants of the headline."""

    size: EvaluationSize
    first_seed: int = FIRST_SEED

    def headline(self) -> list[Cell]:
        """All policies in all variants, with their native mechanism on 64 GPUs."""
        known = present((*SCHEDULERS, *ORACLES))
        labels = [
            label
            for name in known
            for label in (
                name,
                *(f"{name}:{v}" for v in named_variants(name) if self.size.variants),
            )
        ]
        return self._grid(parse_variants(labels), self.size.seeds)

    def mechanisms(self, strongest: Mapping[str, str]) -> list[Cell]:
        """Rivals as tuned for each mechanism, the others in their strongest variant."""
        found = []
        for mechanism in MECHANISMS:
            labels = [
                TUNED[mechanism].get(name, strongest.get(name, name))
                for name in present(SCHEDULERS)
            ]
            found += self._grid(
                parse_variants(labels), self.size.mechanism_seeds, mechanisms=[mechanism]
            )
        return found

    def contended(self) -> list[Cell]:
        """Tuned rivals and strict Optimus at a load at which jobs queue."""
        return self._contended(contended.LOAD)

    def contended_without(self) -> list[Cell]:
        """The same without the kind that makes most of the work."""
        if not self.size.without_dominating:
            return []
        return self._contended(contended.LOAD_WITHOUT, left_out=contended.DOMINATING_KIND)

    def _contended(self, load: float, *, left_out: str = "") -> list[Cell]:
        return self._grid(
            parse_variants(native_labels(TUNED_CONTENDED)),
            self.size.contended_seeds,
            loads=[load],
            base=RunSpec(policy="", jobs=self.size.contended_jobs, left_out=left_out),
        )

    def scaling(self, strongest: Mapping[str, str]) -> list[Cell]:
        """The paper's four, and `ones-paper`."""
        chosen = present(("ones", "ones-paper", *claims.RIVALS))
        labels = [strongest.get(name, name) for name in chosen]
        return self._grid(parse_variants(labels), self.size.scaling_seeds, gpus=self.size.sizes)

    def cumulative(self) -> list[Cell]:
        return self._grid(
            ablation.cumulative(), self.size.ablation_seeds, jobs=self.size.ablation_jobs
        )

    def leave_one_out(self) -> list[Cell]:
        if not self.size.leave_one_out:
            return []
        return self._grid(
            ablation.leave_one_out(), self.size.ablation_seeds, jobs=self.size.ablation_jobs
        )

    def readings(self, *, linear: bool) -> list[Cell]:
        """Readings of the paper, as the simulator is or with linear goodput."""
        if not self.size.reading_seeds:
            return []
        seeds = range(self.first_seed, self.first_seed + self.size.reading_seeds)
        return readings.cells(seeds, jobs=self.size.jobs, linear=linear)

    def prediction(self) -> list[Cell]:
        cells = self._grid(parse_variants(["ones"]), self.size.prediction_seeds)
        return [Cell(label=c.label, asked=c.asked, spec=c.spec, task="prediction") for c in cells]

    def _grid(
        self,
        chosen: Sequence[Variant],
        seeds: int,
        *,
        gpus: Sequence[int] = (64,),
        mechanisms: Sequence[str] = ("native",),
        loads: Sequence[float | None] = (None,),
        jobs: int | None = None,
        base: RunSpec | None = None,
    ) -> list[Cell]:
        return Grid(
            variants=chosen,
            seeds=range(self.first_seed, self.first_seed + seeds),
            gpus=gpus,
            mechanisms=mechanisms,
            loads=loads,
            base=base or RunSpec(policy="", jobs=jobs or self.size.jobs),
        ).cells()


def native_labels(tuned: Tuned) -> list[str]:
    """All schedulers, tuned for their native mechanism, and Optimus as published as well."""
    labels = tuned_labels(present(SCHEDULERS), "native", tuned)
    strict = ["optimus:strict"] if "optimus" in labels else []
    return [*labels, *strict]


def present(wanted: Sequence[str]) -> list[str]:
    known = names()
    return [name for name in wanted if name in known]


def missing() -> list[str]:
    known = names()
    return [name for name in (*SCHEDULERS, *ORACLES) if name not in known]


def strongest_variants(records: Sequence[Record]) -> dict[str, str]:
    """Policy -> label of its variant with the least mean completion time over common seeds.

    Chosen on the same runs that are shown, which favours the rivals. `ones` and `ones-paper` keep
    their defaults, and an oracle is never chosen.
    """
    means: dict[str, dict[str, list[float]]] = {}
    for record in records:
        policy, label = record.cell.spec.policy, record.cell.label
        if policy in ("ones", "ones-paper") or is_oracle(label):
            continue
        means.setdefault(policy, {}).setdefault(label, []).append(record.row["mean_jct"])
    chosen = {}
    for policy, labels in means.items():
        most = max(map(len, labels.values()))
        whole = {label: sum(m) / len(m) for label, m in labels.items() if len(m) == most}
        chosen[policy] = min(whole, key=lambda label: whole[label])
    return chosen


def is_oracle(label: str) -> bool:
    return label in ORACLES or "oracle" in label
