"""The runs of a comparison: who x load x cluster size x mechanism x seed, each with its key."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import Any

from ones.errors import InvalidSettingError
from ones.lab.entrants import Entrant
from ones.lab.fingerprint import content, fingerprint
from ones.lab.runs import Run, RunSpec, trace_of


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run, as it was asked for. Two that come to the same run have the same key."""

    label: str
    asked: str  # mechanism, before `native` is resolved
    spec: RunSpec
    task: str = "run"

    @cached_property
    def key(self) -> str:
        """Of all that the result depends on."""
        described = {
            "task": self.task,
            "spec": asdict(self.spec),
            "content": content(self.spec.workload),
            "code": fingerprint(self.spec.policy),
        }
        text = json.dumps(described, sort_keys=True, default=str)
        return sha256(text.encode()).hexdigest()[:24]

    @property
    def name(self) -> str:
        """For messages: enough to do it again."""
        spec = self.spec
        load = "" if spec.load is None else f", load {spec.load:g}"
        world = "".join(f", {name} x{factor:g}" for name, factor in spec.physics.items())
        return f"{self.label}, seed {spec.seed}, {spec.gpus} GPUs, {self.asked}{load}{world}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    entrants: Sequence[Entrant]
    seeds: Sequence[int]
    gpus: Sequence[int] = (64,)
    mechanisms: Sequence[str] = ("native",)
    loads: Sequence[float | None] = (None,)
    base: RunSpec = field(default_factory=lambda: RunSpec(policy=""))  # what all have in common

    def cells(self) -> list[Cell]:
        """All of them, seed by seed. What cannot be run at all is refused here."""
        if not (self.entrants and self.seeds and self.gpus and self.mechanisms and self.loads):
            raise InvalidSettingError("a comparison needs policies, seeds, sizes and mechanisms")
        resolved = self._resolve()
        return [
            Cell(
                label=entrant.label,
                asked=mechanism,
                spec=replace(
                    self._spec(entrant, load, gpus),
                    seed=seed,
                    mechanism=resolved[entrant.label, mechanism],
                ),
            )
            for seed in self.seeds
            for load in self.loads
            for gpus in self.gpus
            for mechanism in self.mechanisms
            for entrant in self.entrants
        ]

    def _spec(self, entrant: Entrant, load: float | None, gpus: int) -> RunSpec:
        return replace(
            self.base, policy=entrant.policy, settings=dict(entrant.settings), load=load, gpus=gpus
        )

    def _resolve(self) -> dict[tuple[str, str], str]:
        """What each mechanism is for each entrant, by making one run of each kind ready."""
        found: dict[tuple[str, str], str] = {}
        for load in self.loads:
            for gpus in self.gpus:
                first: Any = None
                for entrant in self.entrants:
                    spec = replace(self._spec(entrant, load, gpus), seed=self.seeds[0])
                    first = trace_of(spec) if first is None else first
                    for mechanism in self.mechanisms:
                        run = Run(replace(spec, mechanism=mechanism), first)
                        found[entrant.label, mechanism] = run.mechanism
        return found
