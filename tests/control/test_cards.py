"""What is shown of a job: where its workers are, what it plans, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ones.control.readmodels.entry_texts import MINOR, HistoryReader
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
    View,
)
from ones.core import events as ev
from ones.core.job import Forecast
from ones.core.plan import Plan, Prepare, Start
from ones.core.policy import Decision
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


def test_the_last_epoch_counts_without_a_reader_between_it_and_the_end() -> None:
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
        assert card.message == "The target accuracy is reached."

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
    [(0.0, "less than 1 ms"), (0.0034, "3 ms"), (0.25, "0.2 s"), (31.26, "31 s")],
)
def test_a_pause_is_shown_in_fitting_units(seconds: float, told: str) -> None:
    event = ev.Rescaled(1.0, A, Generation(2), seconds)
    assert list(HistoryReader(A).lines(event)) == [("rescaled", f"Rescaled ({told} pause).")]


class Explaining(Asked):
    """With the note that the test gives."""

    notes: Mapping[JobId, str] = {}

    def decide(self, view: View) -> Decision:
        return Decision(schedule=self.target, notes=self.notes)


def test_each_change_is_one_line_with_its_reason() -> None:
    """Also a change in two steps, and although every worker reports it."""
    policy = Explaining()
    scheduler = Scheduler(Cluster.of(3), policy)
    entries: list[ev.Event | Plan] = []

    def happens(event: ev.Event, note: str = "") -> Plan:
        policy.notes = {A: note} if note else {}
        plan = scheduler.handle(event)
        entries.extend([event, plan])
        return plan

    policy.target = Schedule({A: on(0, batch=32)})
    happens(ev.JobSubmitted(0.0, job(A, requested_batch=32)), "Started on 1 GPU, batch 32: first.")
    ready(scheduler, A, 1.0)
    entries.append(ev.WorkerReady(1.0, A, Generation(1), Gpu(NodeId("n0"), 0)))
    policy.target = Schedule({A: on(0, 1, 2, batch=32)})
    grown = happens(ev.Woke(2.0), "Grown from 1 to 3 GPUs, batch 96: no other job waits.")
    happens(ev.Rescaled(3.0, A, Generation(grown.number), 0.031))
    reader = HistoryReader(A)
    lines = [line for entry in entries for line in reader.lines(entry)]
    shown = [text for kind, text in lines if kind not in MINOR]
    assert shown == [
        "Submitted: ",
        "Started on 1 GPU (n0/0), batch 32: first.",
        "Grown from 1 to 3 GPUs (n0/0-2), batch 96: no other job waits.",
    ]
    assert [kind for kind, _ in lines] == ["submitted", "order", "ready", "order", "rescaled"]


def test_a_change_that_waits_for_gpus_is_not_told_again_when_it_happens() -> None:
    wide = on(0, 1, batch=64)
    first = Plan(
        number=1, at=1.0, actions=(Prepare(A, wide),), notes={A: "Started on 2 GPUs, batch 64: x."}
    )
    second = Plan(number=2, at=2.0, actions=(Start(A, wide),))
    reader = HistoryReader(A)
    assert list(reader.lines(first)) == [
        (
            "order",
            "Started on 2 GPUs (n0/0-1), batch 64: x. The change waits until these GPUs are free.",
        )
    ]
    assert list(reader.lines(second)) == [("step", "Started on 2 GPUs (n0/0-1), batch 128.")]


def test_a_reason_that_only_has_a_new_position_is_not_told_again() -> None:
    reader = HistoryReader(A)
    notes = ["Waiting: busy (⟨job:b⟩). ⟨place:2⟩", "Waiting: busy (⟨job:b⟩). ⟨place:1⟩"]
    plans = [Plan(number=0, at=float(i), notes={A: note}) for i, note in enumerate(notes)]
    assert [line for plan in plans for line in reader.lines(plan)] == [
        ("reason", "Waiting: busy (b).")
    ]


def test_a_waiting_job_has_no_forecast() -> None:
    """It assumed that the job runs: beside an expected start it would be wrong."""
    scheduler = Scheduler(Cluster.of(1), create("fifo"))
    scheduler.handle(ev.JobSubmitted(0.0, job(A, requested_batch=32)))
    record = scheduler.state.records[A]
    record.forecast = Forecast(9.0, 8.0, 10.0)
    assert card_of(record, WorkerPlaces.of(record, None), None, elastic=True).eta == 9.0
    scheduler.handle(ev.NodeDown(1.0, NodeId("n0")))
    card = card_of(record, WorkerPlaces.of(record, None), None, elastic=True)
    assert (card.state, card.eta) == ("waiting", None)
