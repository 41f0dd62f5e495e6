"""The runs of a comparison: variant x load x cluster size x mechanism x seed, with their keys."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import Any

from ones.errors import InvalidSettingError
from ones.lab.comparison.fingerprint import fingerprint, workload_fingerprint
from ones.lab.comparison.variants import Variant
from ones.lab.runs import Run, RunSpec, trace_of


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One requested run. Requests that come to the same run have the same key."""

    label: str
    asked: str  # mechanism, before `native` is resolved
    spec: RunSpec
    task: str = "run"

    @cached_property
    def key(self) -> str:
        """Hash of everything that the result depends on."""
        described = {
            "task": self.task,
            "spec": asdict(self.spec),
            "content": workload_fingerprint(self.spec.workload),
            "code": fingerprint(self.spec.policy),
        }
        text = json.dumps(described, sort_keys=True, default=str)
        return sha256(text.encode()).hexdigest()[:24]

    @property
    def name(self) -> str:
        """Name for messages, enough to repeat the run."""
        spec = self.spec
        load = "" if spec.load is None else f", load {spec.load:g}"
        changes = [f", {name}={value:g}" for name, value in spec.physics.items()]
        changes += [f", {name}={n:g}" for name, n in asdict(spec.shares).items() if n]
        changes += [f", without {spec.left_out}"] if spec.left_out else []
        changes += [] if spec.kinds == "given" else [f", kinds {spec.kinds}"]
        changes += [] if spec.start_up is None else [f", start-up {spec.start_up:g} s"]
        where = f"{spec.gpus} GPUs, {self.asked}{load}{''.join(changes)}"
        return f"{self.label}, seed {spec.seed}, {where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    variants: Sequence[Variant]
    seeds: Sequence[int]
    gpus: Sequence[int] = (64,)
    mechanisms: Sequence[str] = ("native",)
    loads: Sequence[float | None] = (None,)
    base: RunSpec = field(default_factory=lambda: RunSpec(policy=""))  # common to all runs

    def cells(self) -> list[Cell]:
        """All runs, seed by seed. Raises an error for a run that is not possible."""
        if not (self.variants and self.seeds and self.gpus and self.mechanisms and self.loads):
            raise InvalidSettingError("a comparison needs policies, seeds, sizes and mechanisms")
        resolved = self._resolve()
        return [
            Cell(
                label=variant.label,
                asked=mechanism,
                spec=replace(
                    self._spec(variant, load, gpus),
                    seed=seed,
                    mechanism=resolved[variant.label, mechanism],
                ),
            )
            for seed in self.seeds
            for load in self.loads
            for gpus in self.gpus
            for mechanism in self.mechanisms
            for variant in self.variants
        ]

    def _spec(self, variant: Variant, load: float | None, gpus: int) -> RunSpec:
        return replace(
            self.base, policy=variant.policy, settings=dict(variant.settings), load=load, gpus=gpus
        )

    def _resolve(self) -> dict[tuple[str, str], str]:
        """The mechanism behind `native` for each variant; prepares one run of each."""
        found: dict[tuple[str, str], str] = {}
        for load in self.loads:
            for gpus in self.gpus:
                trace: Any = None
                for variant in self.variants:
                    spec = replace(self._spec(variant, load, gpus), seed=self.seeds[0])
                    trace = trace_of(spec) if trace is None else trace
                    for mechanism in self.mechanisms:
                        run = Run(replace(spec, mechanism=mechanism), trace)
                        found[variant.label, mechanism] = run.mechanism
        return found
