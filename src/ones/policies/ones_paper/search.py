"""The evolutionary search: one iteration from population G_i to G_(i+1), and Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ones.policies.ones_paper.fills import FILLS, Draws
from ones.policies.ones_paper.genome import IDLE, Flags, Floats, Genomes, counts
from ones.policies.ones_paper.operators import admit_new, crossover, mutate, reorder, scale_down
from ones.policies.ones_paper.problem import Problem

#: draws of Y_j that the fills of one iteration choose from, beside that of the score
FILL_DRAWS = 8


@dataclass(frozen=True, slots=True)
class PaperSearch:
    """The search process of the paper, with the readings of its text."""

    population: int  # K
    mutation: float  # θ
    fill: str = "waiting-first"
    incumbent: ClassVar[bool] = True  # the schedule in force is a candidate

    def first_population(self, problem: Problem, rng: np.random.Generator) -> Genomes:
        """G_0: a random job on each GPU, repaired because limits forbid most such schedules."""
        runnable = np.flatnonzero((problem.most > 0) | problem.new)
        shape = (self.population, problem.gpus)
        genomes = np.full(shape, IDLE, np.int32)
        if len(runnable):
            genomes = runnable[rng.integers(0, len(runnable), shape)].astype(np.int32)
        self.refresh(genomes, problem, rng)
        return genomes

    def refresh(self, genomes: Genomes, problem: Problem, rng: np.random.Generator) -> None:
        """Brings genomes in line with the jobs of now, in place; (1) is done by `carry_over`."""
        self.repair(genomes, no_jobs(genomes, problem), problem, rng)

    def offspring(
        self, genomes: Genomes, exempt: Flags, problem: Problem, rng: np.random.Generator
    ) -> Genomes:
        """Children of K pairs and K mutants. Mutation never preempts `exempt` jobs."""
        size = len(genomes)
        pairs = rng.integers(0, size, (size, 2))
        parents = rng.integers(0, size, size)
        children = crossover(genomes, pairs, rng.random((size, problem.gpus)) < 0.5)
        preempted = (rng.random((size, problem.jobs)) < self.mutation) & ~exempt
        made = np.concatenate([children, mutate(genomes[parents], preempted)])
        # the GPUs of preempted jobs are for waiting jobs or other running jobs
        barred = no_jobs(made, problem)
        barred[len(children) :] = preempted
        self.repair(made, barred, problem, rng)
        return made

    def repair(
        self, genomes: Genomes, barred: Flags, problem: Problem, rng: np.random.Generator
    ) -> None:
        """Limits, new jobs, idle GPUs and order: the last step of every operator, in place."""
        scale_down(genomes, problem.least, problem.most)
        if len(problem.first):
            admit_new(genomes, problem.least, problem.first, problem.processed)
        fill_and_reorder(genomes, barred, problem, self.fill, rng)

    def iterate(
        self, genomes: Genomes, exempt: Flags, problem: Problem, rng: np.random.Generator
    ) -> Genomes:
        """One iteration: G_i' from G_i by the operators, then the best K of both."""
        made = self.offspring(genomes, exempt, problem, rng)
        return best_of(np.concatenate([genomes, made]), problem, self.population)


def no_jobs(genomes: Genomes, problem: Problem) -> Flags:
    """No job is barred from the GPUs that a fill gives out."""
    return np.zeros((len(genomes), problem.jobs), np.bool_)


def fill_and_reorder(
    genomes: Genomes, barred: Flags, problem: Problem, fill: str, rng: np.random.Generator
) -> None:
    """Gives idle GPUs to jobs by the fill of that name, in place, then sorts the workers."""
    draws: Draws = rng.integers(0, len(problem.work), len(genomes))
    FILLS[fill](genomes, barred, draws, problem)
    reorder(genomes, problem.jobs)


def best_of(candidates: Genomes, problem: Problem, population: int) -> Genomes:
    """The best K candidates, the best first."""
    return candidates[np.argsort(scores(candidates, problem), kind="stable")[:population]]


def scores(genomes: Genomes, problem: Problem) -> Floats:
    """Eq. 8, line 4 of Algorithm 1: GPU-seconds left of all running jobs, for the drawn ρ_j.

    Idle GPUs that a job could use are charged (Eq. 4). The least score wins (line 5).
    """
    c = counts(genomes, problem.jobs)
    left: Floats = problem.cost[np.arange(problem.jobs), c] @ problem.work[0]
    if problem.idle_charge:
        left += problem.idle_charge * (problem.usable - c.sum(axis=1))
    return left


def best(genomes: Genomes, problem: Problem) -> int:
    """S_*: the index of the candidate with the least score (line 5 of Algorithm 1)."""
    return int(np.argmin(scores(genomes, problem)))
