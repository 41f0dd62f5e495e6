"""The batch of the best goodput: as brute force finds it, and within its limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ones.core import Cluster, Gpu, Job, JobId, JobView, NodeId, State
from ones.core import events as ev
from ones.core.job import Configuration, Description, Progress, StepTime
from ones.core.transitions import apply
from ones.models.adaptive_batch import (
    BatchRules,
    GoodputModel,
    GoodputModels,
    allocation,
    gpu_limit,
)
from ones.models.batch_tuner import BatchTuner
from ones.models.step_fit import PolluxStepModel

STEPS = PolluxStepModel(0.02, 0.0008, 0.12, 0.004, 0.03, 0.002, 2.0)
BASE, LIMIT, NOISE = 64, 128, 900.0


def job_view(gpus_seen: int = 1, *, dataset: int = 50_000, max_gpus: int | None = None) -> JobView:
    state = State(Cluster.of(16))
    apply(state, ev.JobSubmitted(0.0, Job(id=JobId("a"), submitted_at=0.0, max_gpus=max_gpus)))
    profile = {Configuration(c, 1, 64 * c): StepTime(0.1, 20) for c in range(1, gpus_seen + 1)}
    return replace(
        state.view().job(JobId("a")),
        description=Description(dataset_size=dataset, base_batch=BASE, max_local_batch=LIMIT),
        progress=Progress(gradient_noise=NOISE),
        profile=profile,
        local_limit=LIMIT,
    )


def by_force(gpus: int, nodes: int, most: int) -> tuple[float, int]:
    """All batches that divide evenly, with the fewest parts."""
    found = []
    for batch in range(max(BASE, gpus), most + 1):
        if batch % gpus:
            continue
        parts = -(-(batch // gpus) // LIMIT)
        if batch // gpus % parts:
            continue
        one = [np.array([x]) for x in (gpus, nodes, batch // gpus // parts, parts)]
        speed = batch / STEPS.step_seconds(*one)[0]
        found.append((speed * (NOISE + BASE) / (NOISE + batch), batch))
    return max(found)


@pytest.mark.parametrize(("gpus", "nodes"), [(1, 1), (2, 1), (4, 1), (8, 2), (16, 4)])
def test_the_best_of_fifty_is_nearly_the_best_of_all(gpus: int, nodes: int) -> None:
    model = GoodputModel(job_view(), BatchRules(), STEPS)
    goodput, _ = by_force(gpus, nodes, 32 * BASE)
    batch, parts, found = model.best(gpus, nodes)
    assert found == pytest.approx(goodput, rel=0.005)
    assert found == pytest.approx(model.at(gpus, nodes, batch, parts))
    assert batch % (gpus * parts) == 0
    assert batch // gpus // parts <= LIMIT
    table = model.table(16)
    row = int(nodes > 1)
    assert table.goodput[row, gpus] == pytest.approx(found)
    assert (table.batch[row, gpus], table.parts[row, gpus]) == (batch, parts)


def test_a_limit_on_the_batch_is_kept_as_far_as_the_base_batch_allows() -> None:
    model = GoodputModel(job_view(), BatchRules(), STEPS)
    free, _, _ = model.best(8, 2)
    assert free > 256
    assert model.best(8, 2, at_most=256)[0] <= 256
    assert model.best(8, 2, at_most=1)[0] == BASE


def test_alone_the_published_trainer_needs_two_parts() -> None:
    rules = BatchRules(two_parts_alone=True)
    steps = STEPS._replace(fixed=0.5)  # a large batch pays
    batch, parts, _ = GoodputModel(job_view(), rules, steps).best(1, 1)
    assert batch > BASE
    assert parts >= 2
    assert GoodputModel(job_view(), BatchRules(), steps).best(1, 1, at_most=LIMIT)[1] == 1


def test_no_job_gets_more_than_twice_its_measured_gpus() -> None:
    rules = BatchRules()
    assert gpu_limit(job_view(0), rules, 64) == 1
    assert gpu_limit(job_view(1), rules, 64) == 2
    assert gpu_limit(job_view(3), rules, 64) == 6
    assert gpu_limit(job_view(8), rules, 12) == 12
    assert gpu_limit(job_view(8, max_gpus=5), rules, 64) == 5
    assert gpu_limit(job_view(8), BatchRules(max_ratio=1.0, min_local=16), 64) == 4
    assert gpu_limit(replace(job_view(8), description=None), rules, 64) == 1


def test_a_batch_grows_with_the_epochs_and_only_if_that_pays() -> None:
    view = job_view(2)
    batches = BatchTuner(BatchRules(), growth=2.0, gain=0.05)
    gpus = (Gpu(NodeId("n0"), 0), Gpu(NodeId("n0"), 1))
    first = batches.allocate(view, gpus)
    assert first.batch <= 2 * BASE
    small = replace(view, wanted=allocation(gpus, BASE, 1))
    better = batches.after_epoch(small)
    assert better is not None
    assert better[0].gpus == gpus
    assert BASE < better[0].batch <= 2 * BASE
    assert batches.after_epoch(replace(small, wanted=better[0])) is None
    assert batches.after_epoch(replace(small, pinned=True)) is None
    assert BatchTuner(BatchRules(), growth=2.0, gain=9.0).after_epoch(small) is None


def test_a_fit_is_made_once_for_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    fits: list[object] = []
    monkeypatch.setattr("ones.models.adaptive_batch.fit_steps", fits.append)
    models, view = GoodputModels(BatchRules()), job_view()
    models.of(view)
    models.of(replace(view, progress=Progress()))
    assert len(fits) == 1
    models.of(replace(view, profile=dict(view.profile)))
    assert len(fits) == 2


@pytest.mark.parametrize(
    ("base", "limit", "min_local"),
    [(2**31, 2**31 - 1, 1), (10**9 + 1, 10**9, 1), (64, 1, 2), (1, 2**31, 4)],
)
def test_every_size_has_a_batch_of_some_use(base: int, limit: int, min_local: int) -> None:
    """Others are compared with it: a goodput of 0 would be divided by."""
    job = replace(
        job_view(), description=Description(dataset_size=10, base_batch=base), local_limit=limit
    )
    model = GoodputModel(job, BatchRules(min_local=min_local), STEPS)
    table = model.table(16)
    assert (table.goodput > 0).all()
    assert (-(-table.batch // (np.maximum(np.arange(17), 1) * table.parts)) <= limit).all()
