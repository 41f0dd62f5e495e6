"""The search of the authors' prototype: the paper's operators, in another order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ones.policies.ones_paper.genome import IDLE, Flags, Genomes
from ones.policies.ones_paper.operators import crossover, mutate, scale_down
from ones.policies.ones_paper.problem import Problem
from ones.policies.ones_paper.search import PaperSearch, best_of, fill_and_reorder, no_jobs


@dataclass(frozen=True, slots=True)
class PrototypeSearch(PaperSearch):
    """Padding brings new jobs on one GPU each; nothing takes GPUs from running jobs for them."""

    fill: str = "length"
    incumbent: ClassVar[bool] = False

    def first_population(self, problem: Problem, rng: np.random.Generator) -> Genomes:
        """Idle GPUs only: the first iteration pads them."""
        return np.full((self.population, problem.gpus), IDLE, np.int32)

    def refresh(self, genomes: Genomes, problem: Problem, rng: np.random.Generator) -> None:
        """Limits only: `iterate` pads the members together with their offspring."""
        _scale_down_to_one(genomes, problem)

    def offspring(
        self, genomes: Genomes, exempt: Flags, problem: Problem, rng: np.random.Generator
    ) -> Genomes:
        """Children of K/2 pairs of different parents, and a mutant of every member."""
        size = len(genomes)
        first = rng.integers(0, size, size // 2)
        pairs = np.stack([first, (first + rng.integers(1, size, size // 2)) % size], axis=1)
        children = crossover(genomes, pairs, rng.random((len(pairs), problem.gpus)) < 0.5)
        scale_down(children, problem.least, problem.most)  # a child inherits up to Q_j
        preempted = (rng.random((size, problem.jobs)) < self.mutation) & ~exempt
        made = np.concatenate([children, mutate(genomes, preempted)])
        self.repair(made, no_jobs(made, problem), problem, rng)
        return made

    def repair(
        self, genomes: Genomes, barred: Flags, problem: Problem, rng: np.random.Generator
    ) -> None:
        """Limits, padding and order."""
        _scale_down_to_one(genomes, problem)
        fill_and_reorder(genomes, barred, problem, self.fill, rng)

    def iterate(
        self, genomes: Genomes, exempt: Flags, problem: Problem, rng: np.random.Generator
    ) -> Genomes:
        """Offspring and padded members compete."""
        made = self.offspring(genomes, exempt, problem, rng)
        self.repair(genomes, no_jobs(genomes, problem), problem, rng)
        return best_of(np.concatenate([genomes, made]), problem, self.population)


def _scale_down_to_one(genomes: Genomes, problem: Problem) -> None:
    """A member keeps the first GPU of a job whatever its limit."""
    scale_down(genomes, problem.least, np.maximum(problem.most, problem.least))
