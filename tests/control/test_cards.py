"""What is shown of a job: where its workers are, what it plans, and how it ended."""

from __future__ import annotations

import pytest

from ones.control.readmodels.entry_texts import tell
from ones.control.readmodels.job_cards import WorkerPlaces, card_of, card_of_ended
from ones.core import (
    Cluster,
    EndReason,
    Generation,
    Gpu,
    Job,
    JobId,
    NodeId,
    Schedule,
    Scheduler,
)
from ones.core import events as ev
from ones.policies import create
from ones.runlog.encoding import decode_outcome, encode_saved
from tests.core.test_scheduler import A, Asked, job, on, ready


def epoch(scheduler: Scheduler, number: int) -> None:
    scheduler.handle(
        ev.EpochFinished(
            at=float(number), job=JobId("a"), generation=Generation(1), epoch=number, samples=64,
            steps=1, loss=1 / number, accuracy=1 - 0.5**number,
        )
    )  # fmt: skip


def test_the_last_epoch_counts_though_nobody_looked_between_it_and_the_end() -> None:
    scheduler = Scheduler(Cluster.of(1), create("fifo"))
    scheduler.handle(ev.JobSubmitted(0.0, Job(id=JobId("a"), submitted_at=0.0, requested_batch=64)))
    scheduler.handle(ev.WorkerReady(0.5, JobId("a"), Generation(1), Gpu(NodeId("n0"), 0)))
    epoch(scheduler, 1)
    record = scheduler.state.records[JobId("a")]
    last = card_of(record, WorkerPlaces.of(record, None), None, elastic=True)
    assert (last.epochs, last.accuracy) == (1, 0.5)
    epoch(scheduler, 2)
    scheduler.handle(ev.JobEnded(2.0, JobId("a"), EndReason.CONVERGED, "target"))
    outcome = scheduler.state.ended[JobId("a")]
    for seen in (last, None):  # None: the controller died before it had shown the job
        card = card_of_ended(outcome, None, seen, elastic=True)
        assert (card.epochs, card.loss, card.accuracy) == (2, 0.5, 0.75)
        assert card.message == "its target accuracy is exceeded"

    kept = encode_saved(outcome)
    assert decode_outcome(kept) == outcome
    for name in ("loss", "accuracy"):  # as earlier versions kept it
        del kept[name]
    old = card_of_ended(decode_outcome(kept), None, last, elastic=True)
    assert (old.epochs, old.loss, old.accuracy) == (2, 1.0, 0.5)


def test_a_worker_that_is_being_started_is_coming_and_not_leaving() -> None:
    policy = Asked()
    scheduler = Scheduler(Cluster.of(2), policy)
    policy.target = Schedule({A: on(0)})
    scheduler.handle(ev.JobSubmitted(0.0, job(A, requested_batch=32)))
    ready(scheduler, A, 1.0)
    policy.target = Schedule({A: on(0, 1, batch=64)})
    scheduler.handle(ev.Woke(2.0))
    seats = WorkerPlaces.of(scheduler.state.records[A], None)
    assert [(w.gpu, w.batch, w.leaving, w.coming) for w in seats.workers] == [
        ("n0/0", 32, False, False),
        ("n0/1", 0, False, True),
    ]


def test_what_the_loop_of_a_script_plans_counts_more_than_what_was_said_at_first() -> None:
    scheduler = Scheduler(Cluster.of(1), create("ones"))
    scheduler.handle(ev.JobSubmitted(0.0, job(A, requested_batch=32, epochs=10)))
    ready(scheduler, A, 1.0)
    record = scheduler.state.records[A]
    for number, planned in ((1, None), (2, 400)):
        scheduler.handle(
            ev.EpochFinished(
                at=10.0 * number, job=A, generation=Generation(1), epoch=number, samples=1000,
                steps=32, planned_epochs=planned,
            )
        )  # fmt: skip
        shown = card_of(record, WorkerPlaces.of(record, None), None, elastic=True)
        assert shown.planned_epochs == (planned or 10)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.0, "less than 1 ms"), (0.0034, "3 ms"), (0.25, "250 ms"), (31.26, "31.3 s")],
)
def test_how_long_a_job_stood_still_is_told_in_fitting_units(seconds: float, told: str) -> None:
    event = ev.Rescaled(1.0, A, Generation(2), seconds)
    assert list(tell(event, A)) == [("rescaled", f"re-scaled; it stood still for {told}")]
