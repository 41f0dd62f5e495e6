"""The population G_i, kept in line with the jobs and GPUs of each event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ones.core.cluster import Gpu, NodeId
from ones.policies.ones_paper.genome import Flags, Genomes, carry_over
from ones.policies.ones_paper.pool import Pool
from ones.policies.ones_paper.problem import Problem
from ones.policies.ones_paper.search import PaperSearch


class Population:
    """K genomes. What follows from them depends on nothing but the calls and the generators."""

    def __init__(self) -> None:
        self._genomes: Genomes | None = None
        self._jobs: list[int] = []  # numbers of the jobs that the genomes index
        self._gpus: list[Gpu] = []  # columns of the genomes

    def refreshed(
        self, pool: Pool, problem: Problem, search: PaperSearch, rng: np.random.Generator
    ) -> Genomes:
        """G_i in line with the jobs of now; G_0 the first time. The population itself stays."""
        if self._genomes is None:
            genomes = search.first_population(problem, rng)
        else:
            genomes = carry_over(self._genomes, (self._jobs, pool.keys), (self._gpus, pool.gpus))
            genomes = genomes.copy()
            search.refresh(genomes, problem, rng)
        if search.incumbent:
            present = pool.present()
            search.refresh(present, problem, rng)
            genomes = np.concatenate([present, genomes])
        return genomes

    def evolve(
        self,
        pool: Pool,
        problem: Problem,
        search: PaperSearch,
        rng: np.random.Generator,
        *,
        exempt: Flags,
        iterations: int,
    ) -> None:
        """The next populations. Jobs that are `exempt` are not preempted by mutation."""
        genomes = self.refreshed(pool, problem, search, rng)
        for _ in range(iterations):
            genomes = search.iterate(genomes, exempt, problem, rng)
        self._genomes, self._jobs, self._gpus = genomes, pool.keys, pool.gpus

    @property
    def genomes(self) -> Genomes:
        assert self._genomes is not None
        return self._genomes

    def save(self) -> dict[str, Any]:
        return {
            "genomes": None if self._genomes is None else self._genomes.tolist(),
            "jobs": self._jobs,
            "gpus": [list(gpu) for gpu in self._gpus],
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._jobs = [int(number) for number in saved["jobs"]]
        self._gpus = [Gpu(NodeId(node), int(index)) for node, index in saved["gpus"]]
        self._genomes = None
        if saved["genomes"] is not None:
            genomes = np.array(saved["genomes"], np.int32)
            self._genomes = genomes.reshape(len(genomes), len(self._gpus))
