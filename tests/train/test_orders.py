"""What a controller may order besides more and fewer workers."""

from __future__ import annotations

from pathlib import Path

import torch

from ones.lab.scripted_policy import JOB
from ones.train.worker_context import FENCED
from ones.wire.messages import CheckpointAndLeave, End, Member, Order, Switch
from tests.processes import wait_for
from tests.train.elastic import Elastic, elastic
from tests.train.test_equivalence import every_sample_exactly_once, replicas_are_equal
from tests.train.test_failures import steps_seen, when

#: from step 15 on it goes slower and slower, and hears its orders long before its end
SLOW = "15:nothing"


def order_at(job: Elastic, step: int, order: Order) -> None:
    """To all workers, once the job has come so far."""
    thread = when(job, lambda: steps_seen(job) >= step, lambda: job.order_last(order))
    job.run.run()
    thread.join()


def exit_codes(job: Elastic) -> list[int | None]:
    return [exit.code for exit in job.run.outcome.exits.values()]


def test_another_batch_for_the_same_workers_needs_no_connection(
    zygote: str, tmp_path: Path
) -> None:
    job = elastic(zygote, tmp_path, "0:2x16,9:2x24,20:2x7", EPOCHS=3)
    outcome = job.play()
    assert [len(s.members) for _, s in outcome.switches] == [2, 2, 2]
    batches = {t["step"]: t["batch"] for t in job.traces}
    assert [batches[step] for step in (8, 9, 19, 20)] == [16, 24, 24, 7]
    every_sample_exactly_once(job, 3, 203)
    assert replicas_are_equal(job) == 1
    job.nothing_is_left()


def test_all_save_and_leave_and_the_next_ones_go_on(zygote: str, tmp_path: Path) -> None:
    job = elastic(zygote, tmp_path, "0:3", HOLD=SLOW)
    order_at(job, 15, CheckpointAndLeave(99))
    assert exit_codes(job) == [0, 0, 0]
    assert not (job.out / "final.pt").exists()
    saved = (tmp_path / "checkpoints" / "run").glob("*.pt")  # epochs may have ended before
    step = max(torch.load(path, weights_only=True)["progress"]["step"] for path in saved)
    assert step >= 15
    job.nothing_is_left()

    again = tmp_path / "again"
    again.mkdir()
    (tmp_path / "checkpoints").rename(again / "checkpoints")
    rest = elastic(zygote, again, "0:2")
    outcome = rest.play()
    assert outcome.switches[0][1].step == step
    seen = sorted((t["epoch"], i) for j in (job, rest) for t in j.traces for i in t["indices"])
    assert seen == [(epoch, i) for epoch in range(4) for i in range(203)]


def test_a_job_that_is_good_enough_ends_its_loop(zygote: str, tmp_path: Path) -> None:
    """What the script does after its loop is done: it saves the model."""
    job = elastic(zygote, tmp_path, "0:2", HOLD=SLOW)
    order_at(job, 15, End("converged", 99))
    assert exit_codes(job) == [0, 0]
    assert 15 <= job.final()["steps"] < 52
    job.nothing_is_left()


def test_a_job_that_is_cancelled_leaves_at_once(zygote: str, tmp_path: Path) -> None:
    job = elastic(zygote, tmp_path, "0:2", HOLD=SLOW)
    order_at(job, 15, End("cancelled", 99))
    assert exit_codes(job) == [0, 0]
    assert not (job.out / "final.pt").exists()
    job.nothing_is_left()


def test_a_joining_worker_that_its_first_plan_excludes_leaves_quietly(
    zygote: str, tmp_path: Path
) -> None:
    job = elastic(zygote, tmp_path, "0:1,9999:2", exact=False, HOLD="5:nothing")
    me = Member(worker="local/0", batch=16)
    alone = Switch(plan=99, members=(me,), batch=16, base_batch=16)

    def joined() -> list[str]:
        live = job.run.engine.live.jobs.get(JOB)
        workers = live.workers.items() if live is not None else ()
        return [launch for launch, w in workers if w.joined and launch.endswith("local.1")]

    def exclude() -> None:
        (launch,) = joined()
        job.run.engine.live.winding_down = True  # no other is started
        job.run.engine.live.mailbox.put(launch, alone)
        wait_for(lambda: job.run.outcome.exits)
        job.order_last(End("converged", 100))

    thread = when(job, lambda: steps_seen(job) >= 5 and bool(joined()), exclude)
    job.run.run()
    thread.join()
    assert exit_codes(job) == [0, 0]
    assert "Traceback" not in job.output()
    assert {t["workers"] for t in job.traces} == {1}
    job.nothing_is_left()


def test_a_worker_without_a_place_goes_quietly(zygote: str, tmp_path: Path) -> None:
    job = elastic(zygote, tmp_path, "0:1", HOLD="5:nothing")
    thread = when(job, lambda: steps_seen(job) >= 5, job.fence)
    job.run.run()
    thread.join()
    assert set(exit_codes(job)) == {FENCED}, "0 would say that the script is done"
    assert "worker local/0 exits: its job has replaced it (fenced by" in job.output()
    assert not (job.out / "final.pt").exists()
