"""What enters from workers and from the database: checked there, told in words, never fatal."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import sqlalchemy as sa

from ones.control.live.cordons import Cordons
from ones.control.live.report_events import event_of
from ones.control.readmodels.entry_texts import HistoryReader
from ones.control.readmodels.job_board import JobBoard
from ones.control.recorder import EntryError, begin, recover
from ones.control.schema import ended_cards, log, meta
from ones.control.store import CORDONS, Store, insert
from ones.core import events as ev
from ones.core.cluster import Cluster, Gpu, NodeId
from ones.core.job import EndReason, Generation, Job, JobId, SwitchCost
from ones.policies import create
from ones.runlog import VERSION, Header, decode, encode
from ones.wire import messages as wire
from ones.wire.bounds import NotFinite

A, GPU = JobId("a-1"), Gpu(NodeId("n0"), 0)
HEADER = Header(
    version=VERSION,
    software="0",
    policy="fifo",
    seed=0,
    nodes=tuple(Cluster.of(1).nodes.values()),
    switch_cost=SwitchCost(),
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(f"sqlite:///{tmp_path}/ones.db")
    yield store
    store.close()


def change(store: Store, statement: sa.Update) -> None:
    def write(connection: sa.Connection) -> None:
        connection.execute(statement)

    store.write_now(write)


@pytest.mark.parametrize(("sent", "found"), [("nan", None), ("inf", None), (77.0, 77.0)])
def test_noise_of_steps_that_is_not_finite_is_missing(
    sent: float | NotFinite, found: float | None
) -> None:
    report = wire.Steps(epoch=1, steps=2, samples=8, gradient_noise=sent)
    event = event_of(report, A, GPU, Generation(1), None)
    assert isinstance(event, ev.StepsDone)
    assert (event.samples, event.gradient_noise) == (8, found)


@pytest.mark.parametrize("word", ["nan", "inf", "-inf"])
def test_a_loss_that_is_not_finite_is_missing_and_reported_and_fails_no_job(
    store: Store, word: NotFinite
) -> None:
    begin(store, HEADER)
    scheduler, recorder = recover(store, HEADER, create("fifo"))
    report = wire.Epoch(epoch=3, steps=2, samples=8, loss=word, accuracy=0.5, gradient_noise=word)
    event = event_of(report, A, GPU, Generation(1), None)
    assert isinstance(event, ev.EpochFinished)
    assert (event.loss, event.accuracy, event.gradient_noise) == (None, 0.5, None)
    assert event.not_finite == ("loss", "gradient_noise")
    assert list(HistoryReader(A).lines(event)) == [
        (
            "epoch",
            "Epoch 3 done: accuracy 0.5, loss is not a finite number, gradient noise is not a"
            " finite number (training may have diverged)",
        )
    ]
    assert decode(encode(event)) == event
    for happened in (
        ev.JobSubmitted(0.0, Job(id=A, submitted_at=0.0, requested_batch=8)),
        ev.WorkerReady(0.0, A, Generation(1), GPU),
        event,
    ):
        recorder(happened)
        plan = scheduler.handle(happened)
        if not plan.says_nothing:
            recorder(plan)
    assert scheduler.state.records[A].epochs == 3
    assert scheduler.state.records[A].loss is None
    store.write_now(lambda connection: None)  # what was given before is written
    again, _ = recover(store, HEADER, create("fifo"))
    assert again.state.records[A] == scheduler.state.records[A]


def test_a_kept_card_that_cannot_be_read_is_skipped_and_made_again(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    begin(store, HEADER)
    scheduler, _ = recover(store, HEADER, create("fifo"))
    for at, name in ((0.0, "a"), (1.0, "b")):
        scheduler.handle(ev.JobSubmitted(at, Job(id=JobId(name), submitted_at=at)))
        scheduler.handle(ev.JobEnded(at, JobId(name), EndReason.FAILED, "it broke"))
    first = JobBoard(store, lambda job: True)
    first.fill(scheduler.state)
    change(store, ended_cards.update().where(ended_cards.c.job == "a").values(body='{"id": 7}'))
    with caplog.at_level(logging.WARNING):
        second = JobBoard(store, lambda job: True)
        second.fill(scheduler.state)
    assert second.cards == first.cards
    assert "kept card of job a cannot be read, skipped: id: 7 is not a string" in caplog.text
    body = store.rows(sa.select(ended_cards.c.body).where(ended_cards.c.job == "b"))[0].body
    assert json.loads(body)["message"] == "it broke"


@pytest.mark.parametrize(
    ("kept", "problem"),
    [
        ('{"nodes":[],"gpus":{"n0":{}}}', "gpus: Expected `str` matching regex"),
        ('{"nodes":[7],"gpus":{}}', "nodes[0]: 7 is not a string"),
        ('{"nodes":[],"gpus":{"n0/1":{"bored":"x"}}}', "gpus: Invalid enum value 'bored'"),
        ("{}", "nodes: is missing"),
        ("[", "is not JSON"),
    ],
)
def test_a_list_of_drained_nodes_that_cannot_be_read_is_ignored_with_a_log_line(
    store: Store, caplog: pytest.LogCaptureFixture, kept: str, problem: str
) -> None:
    cordons = Cordons(SimpleNamespace(store=store))  # type: ignore[arg-type]
    store.write_now(insert(meta, {"key": CORDONS, "value": kept}))
    text = store.cordons()
    assert text is not None
    with caplog.at_level(logging.WARNING):
        cordons.load(text)
    assert not cordons.drained
    assert "kept list of drained nodes and GPUs not read" in caplog.text
    assert problem in str(vars(caplog.records[-1]))


def test_an_entry_of_the_log_that_cannot_be_read_is_named(store: Store) -> None:
    begin(store, HEADER)
    _, recorder = recover(store, HEADER, create("fifo"))
    recorder(ev.Woke(0.0))
    change(store, log.update().values(entry='{"type":"Woke","at":[]}'))
    with pytest.raises(EntryError, match=r"^entry 1 of the log: CodecError: at: \[\] is not a"):
        recover(store, HEADER, create("fifo"))
