"""The evolutionary search: one iteration from population G_i to G_(i+1), and Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ones.policies.ones_paper.fills import FILLS, Draws
from ones.policies.ones_paper.genome import IDLE, Flags, Floats, Genomes, Ints, counts
from ones.policies.ones_paper.operators import admit_new, crossover, mutate, reorder, scale_down
from ones.policies.ones_paper.problem import Problem

#: draws of Y_j that the fills of one iteration choose from, beside that of the score
FILL_DRAWS = 8


@dataclass(frozen=True, slots=True)
class SearchRules:
    """Readings of the search process."""

    population: int  # K
    mutation: float  # θ
    fill: str = "waiting-first"
    admit: bool = True  # refresh (3): new jobs take GPUs from running ones
    incumbent: bool = True  # the schedule in force is a candidate
    prototype: bool = False  # the operators of the authors' prototype


def first_population(problem: Problem, rules: SearchRules, rng: np.random.Generator) -> Genomes:
    """G_0: a random job on each GPU, repaired because limits forbid most such schedules."""
    runnable = np.flatnonzero((problem.most > 0) | problem.new)
    shape = (rules.population, problem.gpus)
    genomes = np.full(shape, IDLE, np.int32)
    if rules.prototype or not len(runnable):  # padding brings the new jobs, on one GPU each
        refresh(genomes, problem, rules, rng)
        return genomes
    genomes = runnable[rng.integers(0, len(runnable), shape)].astype(np.int32)
    refresh(genomes, problem, rules, rng)
    return genomes


def refresh(
    genomes: Genomes, problem: Problem, rules: SearchRules, rng: np.random.Generator
) -> None:
    """Brings genomes in line with the jobs of now, in place; (1) is done by `carry_over`."""
    if rules.prototype:  # its members are padded after crossover and mutation, with the offspring
        scale_down(genomes, problem.least, _kept(problem))
        return
    repair(genomes, np.zeros((len(genomes), problem.jobs), np.bool_), problem, rules, rng)


def repair(
    genomes: Genomes,
    barred: Flags,
    problem: Problem,
    rules: SearchRules,
    rng: np.random.Generator,
) -> None:
    """Limits, new jobs, idle GPUs and order: every candidate that an operator made ends here."""
    scale_down(genomes, problem.least, _kept(problem) if rules.prototype else problem.most)
    if rules.admit and len(problem.first):
        admit_new(genomes, problem.least, problem.first, problem.processed)
    draws: Draws = rng.integers(0, len(problem.work), len(genomes))
    FILLS[rules.fill](genomes, barred, draws, problem)
    reorder(genomes, problem.jobs)


def _kept(problem: Problem) -> Ints:
    """A member of the prototype keeps the first GPU of a job whatever its limit."""
    return np.maximum(problem.most, problem.least)


def offspring(
    genomes: Genomes,
    exempt: Flags,
    problem: Problem,
    rules: SearchRules,
    rng: np.random.Generator,
) -> Genomes:
    """Children of K pairs and K mutants. Jobs that are `exempt` are never preempted by mutation."""
    size = len(genomes)
    if rules.prototype:  # K/2 pairs of different parents; every member is mutated once
        first = rng.integers(0, size, size // 2)
        pairs = np.stack([first, (first + rng.integers(1, size, size // 2)) % size], axis=1)
        parents = np.arange(size)
    else:
        pairs = rng.integers(0, size, (size, 2))
        parents = rng.integers(0, size, size)
    children = crossover(genomes, pairs, rng.random((len(pairs), problem.gpus)) < 0.5)
    if rules.prototype:
        scale_down(children, problem.least, problem.most)  # a child inherits up to Q_j
    preempted = (rng.random((size, problem.jobs)) < rules.mutation) & ~exempt
    mutants = mutate(genomes[parents], preempted)
    made = np.concatenate([children, mutants])
    # the GPUs of preempted jobs are for waiting jobs or other running jobs
    barred = np.zeros((len(made), problem.jobs), np.bool_)
    if not rules.prototype:
        barred[len(children) :] = preempted
    repair(made, barred, problem, rules, rng)
    return made


def iterate(
    genomes: Genomes,
    exempt: Flags,
    problem: Problem,
    rules: SearchRules,
    rng: np.random.Generator,
) -> Genomes:
    """One iteration: G_i' from G_i by the operators, then the best K of both, the best first."""
    made = offspring(genomes, exempt, problem, rules, rng)
    if rules.prototype:
        barred = np.zeros((len(genomes), problem.jobs), np.bool_)
        repair(genomes, barred, problem, rules, rng)
    candidates = np.concatenate([genomes, made])
    return candidates[np.argsort(scores(candidates, problem), kind="stable")[: rules.population]]


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
