"""Which runs the evaluation is made of, quick or full, and which variant stands for a rival."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ones.lab.entrants import Entrant, entrants, variants_of
from ones.lab.grid import Cell, Grid
from ones.lab.paper import claims, ladder
from ones.lab.runs import RunSpec
from ones.lab.tables import Record
from ones.policies import names

FIRST_SEED = 1000  # 1 to 99 were used for calibration
#: in the order of the tables
SCHEDULERS = ("ones", "ones-paper", "drl", "tiresias", "optimus", "pollux", "sia", "equi", "fifo")
#: they are told the truth about every job: a bound, and no rival
ORACLES = ("srtf", "srsf")
MECHANISMS = ("native", "elastic", "checkpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """How much is run of each part: seeds, and jobs where it is fewer than the paper's 50."""

    seeds: int
    jobs: int = 50
    variants: bool = True
    mechanism_seeds: int
    scaling_seeds: int
    sizes: Sequence[int] = claims.SIZES
    ladder_seeds: int
    ladder_jobs: int = 50
    without: bool = True
    prediction_seeds: int


FULL = Depth(seeds=10, mechanism_seeds=10, scaling_seeds=10, ladder_seeds=10, prediction_seeds=3)
QUICK = Depth(
    seeds=2, variants=False, mechanism_seeds=1, scaling_seeds=1, sizes=(16, 64),
    ladder_seeds=1, ladder_jobs=20, without=False, prediction_seeds=1,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Design:
    """The parts, by name. Those of the second half depend on who is the stronger variant."""

    depth: Depth
    first_seed: int = FIRST_SEED

    def headline(self) -> list[Cell]:
        """Everybody, in every variant, under the native mechanism on 64 GPUs."""
        known = present((*SCHEDULERS, *ORACLES))
        labels = [
            label
            for name in known
            for label in (name, *(f"{name}:{v}" for v in variants_of(name) if self.depth.variants))
        ]
        return self._grid(entrants(labels), self.depth.seeds)

    def mechanisms(self, standing: Mapping[str, str]) -> list[Cell]:
        labels = [standing.get(name, name) for name in present(SCHEDULERS)]
        return self._grid(entrants(labels), self.depth.mechanism_seeds, mechanisms=MECHANISMS)

    def scaling(self, standing: Mapping[str, str]) -> list[Cell]:
        """The paper's four, and `ones-paper`."""
        chosen = present(("ones", "ones-paper", *claims.RIVALS))
        labels = [standing.get(name, name) for name in chosen]
        return self._grid(entrants(labels), self.depth.scaling_seeds, gpus=self.depth.sizes)

    def up(self) -> list[Cell]:
        return self._grid(ladder.up(), self.depth.ladder_seeds, jobs=self.depth.ladder_jobs)

    def without(self) -> list[Cell]:
        if not self.depth.without:
            return []
        return self._grid(ladder.without(), self.depth.ladder_seeds, jobs=self.depth.ladder_jobs)

    def prediction(self) -> list[Cell]:
        cells = self._grid(entrants(["ones"]), self.depth.prediction_seeds)
        return [Cell(label=c.label, asked=c.asked, spec=c.spec, task="prediction") for c in cells]

    def _grid(
        self,
        who: Sequence[Entrant],
        seeds: int,
        *,
        gpus: Sequence[int] = (64,),
        mechanisms: Sequence[str] = ("native",),
        jobs: int | None = None,
    ) -> list[Cell]:
        return Grid(
            entrants=who,
            seeds=range(self.first_seed, self.first_seed + seeds),
            gpus=gpus,
            mechanisms=mechanisms,
            base=RunSpec(policy="", jobs=jobs or self.depth.jobs),
        ).cells()


def present(wanted: Sequence[str]) -> list[str]:
    known = names()
    return [name for name in wanted if name in known]


def missing() -> list[str]:
    known = names()
    return [name for name in (*SCHEDULERS, *ORACLES) if name not in known]


def stronger(records: Sequence[Record]) -> dict[str, str]:
    """Policy -> the label of its variant with the least mean completion time over the seeds that
    all its variants have. Chosen on the very runs that are shown, which favours the rivals; `ones`
    and `ones-paper` stand as they are, and a variant that is told the truth is never chosen."""
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
