"""Random switches under the rules of NCCL and with gloo: grow, shrink, move, kill, stop, out of
memory. Each job must end with equal states, the result of one process, and no process left.

`ONES_SWITCHES=1000 pytest -m soak tests/train/test_random_switches.py` makes 1,000 of them.
"""

from __future__ import annotations

import json
import os
import random
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from ones.core.cluster import Gpu
from ones.core.view import JobView, View
from ones.lab import scripted_policy
from tests.train.elastic import Elastic, elastic
from tests.train.test_equivalence import BASE, SAMPLES
from tests.train.test_strict_jobs import equals_one_process

SLOTS = 4
STEPS_OF_A_PHASE = 9
PHASES = 25
PATIENCE_SECONDS = 600.0
#: a worker that hangs is found after this; healthy ones may be taken for hanging on a busy machine
HANG_SECONDS = 5
MOMENTS = ["forward", "step", "connect", "device", "allocate", "broadcast", "leave", "save"]


def random_schedule(chance: random.Random, phases: int) -> str:
    sizes = [chance.randint(1, SLOTS)]
    while len(sizes) <= phases:
        sizes.append(chance.choice([n for n in range(1, SLOTS + 1) if n != sizes[-1]]))
    return ",".join(f"{STEPS_OF_A_PHASE * i}:{size}x16" for i, size in enumerate(sizes))


def random_crash(chance: random.Random, phase: int) -> str:
    worker, step = chance.randint(0, SLOTS - 1), chance.randint(1, STEPS_OF_A_PHASE)
    how = chance.choice(["SIGKILL"] * 6 + ["error"] * 3 + ["memory"] * 2 + ["SIGSTOP"])
    moment = "forward" if how == "memory" else chance.choice(MOMENTS)
    return f"local-{worker}:{moment}:{how}:{STEPS_OF_A_PHASE * phase + step}:{phase}"


def moved(seed: int, workers: int, job: JobView, view: View) -> list[Gpu] | None:
    """Random GPUs, of which one at least is kept; others than held also at the same size."""
    held = list(job.wanted.gpus) if job.wanted is not None else []
    every = [Gpu(node.id, i) for node in view.cluster.nodes.values() for i in range(node.gpus)]
    if job.occupied > len(held) or len(every) < workers:
        return None
    chance = random.Random(f"{seed} {workers} {held}")
    kept = [chance.choice(held)] if held else []
    others = [gpu for gpu in every if gpu not in kept]
    while True:
        found = kept + chance.sample(others, workers - len(kept))
        if set(found) != set(held) or workers in (1, SLOTS):
            return found


def random_job(
    zygote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, phases: int
) -> tuple[Elastic, str, int]:
    """The job, its optimizer and its epochs. No switch is missed: a phase waits for its own."""
    chance = random.Random(seed)
    schedule = random_schedule(chance, phases)
    crashes = [random_crash(chance, phase) for phase in range(phases) if chance.random() < 0.4]
    holds = [f"{STEPS_OF_A_PHASE * i}:phase-{i}" for i in range(1, phases + 1)]
    optimizer = chance.choice(["sgd", "adamw"])
    epochs = phases * 3 * STEPS_OF_A_PHASE // 13 + 2
    monkeypatch.setattr(scripted_policy, "RETRIES", 10_000)
    monkeypatch.setattr(scripted_policy, "_gpus", lambda *about: moved(seed, *about))
    strict = {"STRICT": seed, "SKEW": chance.choice([0.0, 0.002, 0.01])} if seed % 4 else {}
    job = elastic(
        zygote, tmp_path, schedule, exact=False, OPTIMIZER=optimizer, NAP=0.005,
        CRASH=",".join(crashes), HOLD=",".join(holds), HOLD_MOST=0.3, ONES_CHECKPOINT_SECONDS=0.3,
        ONES_HANG_SECONDS=HANG_SECONDS, EPOCHS=epochs, SAMPLES=SAMPLES, BATCH=BASE,
        DIGESTS=1, **strict,
    )  # fmt: skip
    job.run._job = replace(job.run._job, retries=10_000)
    return job, optimizer, epochs


def play(job: Elastic) -> None:
    over = threading.Event()

    def mark_phases() -> None:
        while not over.wait(0.01):
            for phase in range(1, job.run.policy._phase + 1):
                (job.out / f"phase-{phase}").touch()

    marks = threading.Thread(target=mark_phases, daemon=True)
    marks.start()
    try:
        job.play(PATIENCE_SECONDS)
    finally:
        over.set()
        marks.join()


def equal_after_each_switch(job: Elastic) -> int:
    """Compares the digests of all workers at the first step of each group; returns the groups."""
    found: dict[tuple[int, int, int], dict[str, str]] = {}
    for path in job.out.glob("digests-*.jsonl"):
        for line in map(json.loads, path.read_text().splitlines()):
            # a group whose first step is lost begins it again, with fewer workers
            key = (*line["generation"], line["step"])
            found.setdefault(key, {})[line["worker"]] = line["digest"]
    for key, digests in found.items():
        assert len(set(digests.values())) == 1, (key, digests)
    return sum(len(digests) > 1 for digests in found.values())


def check(
    zygote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, phases: int
) -> int:
    """Returns the number of switches, with those after a loss."""
    job, optimizer, epochs = random_job(zygote, tmp_path, monkeypatch, seed, phases)
    play(job)
    switches = len(job.run.outcome.switches) - 1
    compared = equal_after_each_switch(job)
    print(f"seed {seed}: {switches} switches, digests of {compared} groups compared", flush=True)
    assert compared >= phases // 2
    equals_one_process(job, optimizer, "0:1x16", epochs)
    assert "RuleBrokenError" not in job.output()
    return switches


@pytest.mark.parametrize("seed", [1, 4])
def test_a_few_random_switches(
    zygote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    assert check(zygote, tmp_path, monkeypatch, seed, 4) >= 4


@pytest.mark.soak
def test_many_random_switches(zygote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of 25 phases until ONES_SWITCHES are made; three of four jobs under the strict group."""
    wanted, done = int(os.environ.get("ONES_SWITCHES", "100")), 0
    seed = int(os.environ.get("ONES_FIRST_SEED", "1000"))
    while done < wanted:
        directory = tmp_path / str(seed)
        directory.mkdir()
        done += check(zygote, directory, monkeypatch, seed, PHASES)
        print(f"seed {seed}: {done} switches", flush=True)
        seed += 1
