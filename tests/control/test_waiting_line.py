"""Positions, expected starts and names in the reasons of waiting jobs, for each reader."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from ones.control.readmodels.job_board import JobBoard
from ones.control.readmodels.job_cards import JobCard, WorkerPlaces, card_of
from ones.control.readmodels.reader import Reader
from ones.control.readmodels.waiting_line import WaitingLine
from ones.control.store import Store
from ones.core import Cluster, Generation, Gpu, Job, JobId, NodeId, Scheduler
from ones.core import events as ev
from ones.core.job import Forecast
from ones.core.reason_markers import render
from ones.core.record import JobRecord
from ones.policies import create

NOW = 100.0


@dataclass
class Jobs:
    """A cluster of four GPUs under fifo, with a board."""

    scheduler: Scheduler
    board: JobBoard

    def submit(self, name: str, owner: str, gpus: int = 1, **more: float) -> None:
        job = Job(
            id=JobId(name),
            submitted_at=self.scheduler.state.now,
            owner=owner,
            requested_gpus=gpus,
            min_gpus=gpus,
            priority=more.get("priority", 0.0),
        )
        self.happens(ev.JobSubmitted(self.scheduler.state.now + 1, job))
        eta = more.get("eta")
        if eta is not None:
            self.record(name).forecast = Forecast(eta, eta - 10, eta + 10)
        self.show()

    def happens(self, event: ev.Event) -> None:
        self.scheduler.handle(event)
        self.show()

    def record(self, name: str) -> JobRecord:
        return self.scheduler.state.records[JobId(name)]

    def show(self) -> None:
        state = self.scheduler.state
        self.board.update(state, [*state.records, *state.ended])

    def note(self, name: str, owner: str = "", now: float = NOW) -> str:
        """As a user reads it; without a name: as an admin."""
        reader = Reader(self.board, lambda other: owner in ("", other))
        return str(reader.card(self.board.cards[name], now)["note"])


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    store = Store(f"sqlite:///{tmp_path}/ones.db")
    scheduler = Scheduler(Cluster.of(4), create("fifo"))
    return Jobs(scheduler, JobBoard(store, lambda job: True))


def test_position_and_expected_start_follow_from_the_forecasts_of_running_jobs(jobs: Jobs) -> None:
    jobs.submit("bert-1", "ann", 3, eta=NOW + 480)
    jobs.submit("vgg-2", "bob", 1, eta=NOW + 60)
    jobs.submit("wide-3", "ann", 2)
    jobs.submit("next-4", "bob", 1)
    assert jobs.note("wide-3") == (
        "Waiting: needs 2 GPUs at the same time. GPUs are used by bert-1, vgg-2."
        " Position 1 of 2. Expected start in about 8 min."
    )
    assert jobs.note("next-4") == (
        "Waiting for 1 GPU. GPUs are used by bert-1, vgg-2."
        " Position 2 of 2. Expected start in about 8 min."
    )
    assert jobs.note("wide-3", now=NOW + 300).endswith("Expected start in about 3 min.")
    assert jobs.note("wide-3", now=NOW + 500).endswith("Expected start soon.")
    # the line moves although nothing happens to this job
    jobs.happens(ev.PriorityChanged(20.0, JobId("next-4"), 5.0))
    assert "Position 2 of 2." in jobs.note("wide-3")
    assert jobs.note("next-4").endswith("Expected start in about 60 s.")


def test_without_forecasts_no_start_is_promised(jobs: Jobs) -> None:
    jobs.submit("bert-1", "ann", 4)
    jobs.submit("vgg-2", "ann", 1)
    assert jobs.note("vgg-2").endswith("GPUs are used by bert-1. Position 1 of 1.")


def test_jobs_of_other_users_are_not_named(jobs: Jobs) -> None:
    jobs.submit("bert-1", "ann", 2)
    jobs.submit("vgg-2", "bob", 2)
    jobs.submit("mine-3", "bob", 1)
    assert "used by bert-1, vgg-2." in jobs.note("mine-3")
    assert "used by vgg-2, a job of another user." in jobs.note("mine-3", "bob")
    stored = "Preempted: made room for ⟨job:bert-1⟩."
    reader = Reader(jobs.board, lambda owner: owner == "bob")
    assert reader.text(stored) == "Preempted: made room for a job of another user."
    assert reader.text("Preempted: made room for ⟨job:gone-9⟩.").endswith("a job of another user.")


def test_a_job_that_lost_its_gpus_is_not_shown_as_started(jobs: Jobs) -> None:
    jobs.submit("bert-1", "ann", 1)
    jobs.happens(ev.WorkerReady(5.0, JobId("bert-1"), Generation(1), Gpu(NodeId("n0"), 0)))
    assert jobs.note("bert-1") == "Started on 1 GPU: it was next in the queue."
    jobs.happens(ev.NodeDown(6.0, NodeId("n0")))
    assert jobs.note("bert-1") == "Waiting: needs 1 GPU. Position 1 of 1."
    jobs.record("bert-1").note = "Started on 1 GPU: a policy that has not decided again."
    jobs.show()
    assert jobs.note("bert-1") == ("Waiting for 1 GPU. Position 1 of 1.")


def test_the_order_of_the_policy_comes_before_that_of_the_queue(jobs: Jobs) -> None:
    jobs.submit("bert-1", "ann", 4)
    cards = []
    for name, note in (("a", "x. ⟨place:2⟩"), ("b", "y. ⟨place:1⟩"), ("c", "z. ⟨queue:1⟩")):
        jobs.submit(name, "ann", 1)
        jobs.record(name).note = note
        cards.append(_card(jobs, name))
    line = WaitingLine.of(cards, 4)
    assert line.positions == {"b": 1, "a": 2, "c": 3}
    shown = render("x. ⟨place:2⟩", live=line.live("a", NOW, lambda job: True))
    assert shown == "x. Position 2 of 3."


def test_the_order_is_made_once_for_a_list_and_again_after_a_change(jobs: Jobs) -> None:
    jobs.submit("bert-1", "ann", 4)
    jobs.submit("a", "ann", 1)
    first = jobs.board.line()
    assert jobs.board.line() is first
    jobs.submit("b", "ann", 1)
    assert jobs.board.line() is not first


def _card(jobs: Jobs, name: str) -> JobCard:
    record = jobs.record(name)
    return card_of(record, WorkerPlaces.of(record, None), None, elastic=True)
