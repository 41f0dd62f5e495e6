"""Update: S_* is deployed "after all the running jobs finish at least one epoch"."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ones.core import (
    Allocation,
    Cluster,
    Generation,
    Gpu,
    Job,
    JobId,
    JobView,
    NodeId,
    Plan,
    Scheduler,
)
from ones.core import events as ev
from ones.core.plan import Rescale, Start
from ones.policies.ones_paper.policy import OnesPaper
from ones.policies.ones_paper.updates import UpdateGate
from tests.policies.ones.jobs import a_job

A, B, C = JobId("a"), JobId("b"), JobId("c")


def seen(name: JobId, *, runs: bool = True, pinned: bool = False, elastic: bool = True) -> JobView:
    job = a_job()
    held = Allocation.even([Gpu(NodeId("n0"), 0)], 64) if runs else None
    plain = Job(id=name, submitted_at=0.0, elastic=elastic)
    return replace(job, job=plain, wanted=held, held=held, pinned=pinned)


def test_an_update_waits_for_an_epoch_of_every_running_job() -> None:
    gate = UpdateGate("all")
    jobs = [seen(A), seen(B), seen(C, runs=False)]
    gate.look(jobs)
    assert not gate.may_open
    gate.finished_epoch(A)
    gate.look(jobs)
    assert not gate.may_open
    gate.finished_epoch(B)
    gate.look(jobs)
    assert gate.allows([A, B])


def test_after_an_update_epochs_count_anew() -> None:
    gate = UpdateGate("all")
    gate.finished_epoch(A)
    gate.look([seen(A)])
    assert gate.adopted([A])
    gate.look([seen(A)])
    assert not gate.may_open


def test_a_start_on_free_gpus_between_updates_is_no_update() -> None:
    """With the earlier rule every adopted plan cleared the epochs of all jobs."""
    gate = UpdateGate("all")
    gate.finished_epoch(A)
    gate.look([seen(A), seen(B), seen(C, runs=False)])  # B owes an epoch
    assert not gate.adopted([C])
    gate.finished_epoch(B)
    gate.look([seen(A), seen(B)])
    assert gate.may_open, "A does not owe another epoch"


def test_a_second_step_of_an_earlier_plan_is_no_update() -> None:
    gate = UpdateGate("settled")
    gate.finished_epoch(A)
    gate.look([seen(A), seen(B, pinned=True)])
    assert not gate.adopted([B])
    gate.close()
    assert not gate.adopted([A]), "no decision was made at this event"


@pytest.mark.parametrize(("rule", "opens"), [("all", False), ("settled", True)])
def test_a_job_that_starts_up_blocks_an_update_by_the_letter(rule: str, opens: bool) -> None:
    gate = UpdateGate(rule)
    gate.finished_epoch(A)
    gate.look([seen(A), seen(B, pinned=True)])
    assert gate.may_open == opens


def test_a_job_without_elasticity_never_blocks() -> None:
    gate = UpdateGate("all")
    gate.finished_epoch(A)
    gate.look([seen(A), seen(B, pinned=True, elastic=False)])
    assert gate.may_open


def test_affected_only_jobs_that_would_change_owe_an_epoch() -> None:
    gate = UpdateGate("affected")
    gate.finished_epoch(A)
    gate.look([seen(A), seen(B), seen(C, runs=False)])
    assert gate.allows([A])
    assert not gate.allows([A, B])
    assert not gate.adopted([C]), "a start changes no running job"


def test_the_gate_goes_on_after_save_and_load() -> None:
    gate, other = UpdateGate("all"), UpdateGate("all")
    gate.finished_epoch(A)
    gate.look([seen(A)])
    other.load(json.loads(json.dumps(gate.save())))
    assert other.adopted([A])


class Live:
    """A scheduler whose orders are carried out at once."""

    def __init__(self, gpus: int) -> None:
        self.policy = OnesPaper(seed=1)
        self.scheduler = Scheduler(Cluster.of(gpus), self.policy)
        self.plans: list[Plan] = []
        self.epochs: dict[JobId, int] = {}

    def tell(self, event: ev.Event) -> None:
        plan = self.scheduler.handle(event)
        if not plan.actions:
            return
        self.plans.append(plan)
        for action in plan.actions:
            generation = Generation(plan.number)
            if isinstance(action, Start):
                for gpu in action.allocation.gpus:
                    self.tell(ev.WorkerReady(event.at, action.job, generation, gpu))
                self.tell(ev.JobDescribed(at=event.at, job=action.job, generation=generation,
                                          dataset_size=10_000, base_batch=64))  # fmt: skip
            elif isinstance(action, Rescale):
                self.tell(ev.Rescaled(event.at, action.job, generation, 1.0))

    def submit(self, name: JobId, at: float) -> None:
        self.tell(ev.JobSubmitted(at, Job(id=name, submitted_at=at, requested_batch=64)))

    def epoch(self, name: JobId, at: float) -> None:
        epoch = self.epochs[name] = self.epochs.get(name, 0) + 1
        generation = self.scheduler.state.records[name].generation
        self.tell(
            ev.EpochFinished(
                at=at,
                job=name,
                generation=generation,
                epoch=epoch,
                samples=10_000,
                steps=157,
                loss=1.0,
                step_seconds=0.1,
            )
        )

    def size(self, name: JobId) -> int:
        held = self.scheduler.state.schedule.get(name)
        return held.n_gpus if held else 0


def test_a_job_that_starts_between_updates_does_not_take_back_the_epochs_of_others() -> None:
    """Fails with the earlier rule: the start of C cleared the epoch of A, so the next one of B and
    C did not open the gate."""
    live = Live(gpus=4)
    live.submit(A, 0.0)
    live.submit(B, 1.0)
    live.epoch(A, 10.0)
    live.submit(C, 11.0)
    assert [live.size(job) for job in (A, B, C)] == [1, 1, 1], "B owes an epoch"
    live.epoch(B, 20.0)
    assert sum(map(live.size, (A, B, C))) == 3, "C owes an epoch"
    live.epoch(C, 30.0)
    assert sum(map(live.size, (A, B, C))) == 4, "all have done one: the update uses the last GPU"


def test_the_limit_of_a_waiting_job_is_halved_by_updates_only() -> None:
    live = Live(gpus=2)
    live.submit(A, 0.0)
    live.epoch(A, 10.0)  # R = 128, an update to 2 GPUs
    assert live.size(A) == 2
    view = live.scheduler.state.view().job(A)
    assert live.policy._learned.limits.of(view) == 128
    live.submit(B, 20.0)  # A owes an epoch: nothing changes
    assert (live.size(A), live.size(B)) == (2, 0)
    live.epoch(A, 30.0)  # an update lets the new job in
    assert (live.size(A), live.size(B)) == (1, 1)
