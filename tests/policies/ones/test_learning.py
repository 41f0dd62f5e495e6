"""What is learned from plans and events, beyond what has a module of its own."""

from __future__ import annotations

from ones.core import Allocation, Generation, Gpu, NodeId, Plan
from ones.core import events as ev
from ones.core.plan import PlanAdopted, Rescale
from ones.policies.ones.learning import Learned
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
    assert learned.standing(job, 10.0).least_batch == 256
    generation = Generation(1)
    epoch = ev.EpochFinished(
        at=11.0, job=A, generation=generation, epoch=1, samples=10_000, steps=20
    )
    learned.learn(epoch, view)
    assert job.held is not None
    assert learned.standing(job, 12.0).least_batch == job.held.batch
