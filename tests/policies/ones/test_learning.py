"""What is learned from plans and events, beyond what has a module of its own."""

from __future__ import annotations

import json
from math import inf

from ones.core import Allocation, Generation, Gpu, NodeId, Plan
from ones.core import events as ev
from ones.core.job import EndReason
from ones.core.plan import PlanAdopted, Rescale, Start
from ones.policies.ones.predict.learning import Learned
from ones.policies.ones.settings import OnesSettings
from tests.policies.ones.jobs import A, seen


def test_a_batch_grows_from_the_smallest_since_the_last_epoch() -> None:
    """A job of long epochs made room, with a quarter of its batch, and got its GPUs back: from
    there to six times as much is sudden growth, whatever the batch was before."""
    view, job = seen()
    learned = Learned(OnesSettings(), seed=0)
    gpus = [Gpu(NodeId("n0"), i) for i in range(4)]
    for number, batch in enumerate((1024, 256, 512), start=2):
        plan = Plan(
            number=number,
            at=float(number),
            actions=(Rescale(A, Allocation.even(gpus, batch, None)),),
        )
        learned.adopted(PlanAdopted(plan.at, plan))
    assert learned.status(job, 10.0).smallest_batch == 256
    generation = Generation(1)
    epoch = ev.EpochFinished(
        at=11.0, job=A, generation=generation, epoch=1, samples=10_000, steps=20
    )
    learned.learn(epoch, view)
    assert job.held is not None
    assert learned.status(job, 12.0).smallest_batch == job.held.batch


def test_the_time_since_the_last_start_is_saved_and_loaded() -> None:
    """A rescale is no start."""
    _, job = seen()
    learned = Learned(OnesSettings(), seed=0)
    assert learned.status(job, 10.0).since_start == inf
    one = Allocation.even([Gpu(NodeId("n0"), 0)], 64, None)
    actions: list[Start | Rescale] = [Start(A, one), Start(A, one), Rescale(A, one)]
    for number, action in enumerate(actions, start=2):
        plan = Plan(number=number, at=10.0 * number, actions=(action,))
        learned.adopted(PlanAdopted(plan.at, plan))
    assert learned.status(job, 100.0).since_start == 70.0
    other = Learned(OnesSettings(), seed=0)
    other.load(json.loads(json.dumps(learned.save())))
    assert other.status(job, 100.0).since_start == 70.0
    assert other.save() == learned.save()
    end = ev.JobEnded(at=120.0, job=A, reason=EndReason.CANCELLED)
    other.learn(end, seen()[0])
    assert other.status(job, 130.0).since_start == inf
