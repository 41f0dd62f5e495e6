"""The catalogue of messages for users: each with sample values, and what each reader sees of it."""

from __future__ import annotations

import inspect

import pytest

from ones.core import Allocation, Gpu, NodeId, reasons
from ones.core.reason_markers import render
from tests.docs.test_language import DIALECT

MOST = 160  # characters that a reader sees, without the list of running jobs

ONE = Allocation.even([Gpu(NodeId("n1"), 0)], 64, 256)
TWO = Allocation.even([Gpu(NodeId("n1"), i) for i in (0, 1)], 256, 256)

#: by function: sample values and the text of them
SAMPLES: dict[str, tuple[str, str]] = {
    "started": (
        reasons.started(2, 256, reasons.precedence(0, shorter=True, competing=1, shared_gpus=4)),
        "Started on 2 GPUs, batch 256: no other job competes for the 4 shared GPUs.",
    ),
    "resized": (
        reasons.resized(
            1,
            4,
            512,
            reasons.precedence(0, shorter=True, competing=6, shared_gpus=8),
            speed=2.6,
            pause=0.84,
        ),
        "Grown from 1 to 4 GPUs, batch 512 (2.6x faster, 0.8 s pause):"
        " it is first of 6 jobs for the 8 shared GPUs.",
    ),
    "moved": (
        reasons.moved(1, 64, reasons.NOT_MEASURED, pause=12.0),
        "Moved to 1 other GPU, batch 64 (12 s pause): its speed is not measured yet.",
    ),
    "rebatched": (
        reasons.rebatched(
            128,
            256,
            1,
            reasons.precedence(5, shorter=True, competing=6, shared_gpus=3),
            speed=1.1,
            pause=0.8,
        ),
        "Batch 128 -> 256 (1.1x faster, 0.8 s pause). Stays on 1 GPU:"
        " 5 shorter jobs have precedence for the 3 shared GPUs.",
    ),
    "changed": (
        reasons.changed(TWO, ONE, reasons.batch_limit(1024), speed=0.5),
        "Shrunk from 2 to 1 GPU, batch 64 (2.0x slower): its batch limit is 1,024 for now.",
    ),
    "began_again": (
        reasons.began_again(3),
        "Training began again from the start: no checkpoint was found. Lost: 3 epochs done before.",
    ),
    "diverged": (
        reasons.diverged(2),
        "The loss is not a finite number since epoch 2: training may have diverged.",
    ),
    "preempted": (
        reasons.preempted(["bert-12"], reasons.SOONER),
        "Preempted: made room for bert-12, which finishes sooner."
        " Its work is saved; it resumes when GPUs are free.",
    ),
    "equal_share": (
        reasons.changed(None, TWO, reasons.equal_share(8, 4)),
        "Started on 2 GPUs, batch 256: an equal share of 8 GPUs among 4 jobs.",
    ),
    "best_goodput": (
        reasons.changed(ONE, TWO, reasons.best_goodput(12, 16)),
        "Grown from 1 to 2 GPUs, batch 256: the best total goodput for 12 jobs on 16 GPUs.",
    ),
    "largest_saving": (
        reasons.started(2, 64, reasons.largest_saving(1, 75)),
        "Started on 2 GPUs, batch 64: each GPU goes where it saves the most time,"
        " here about 75 s compared with 1 GPU.",
    ),
    "waiting_far_behind": (
        reasons.waiting_far_behind(reasons.SHORTER_FIRST, 1),
        "Waiting for 1 GPU: shorter jobs have precedence. More than 20 waiting jobs come first.",
    ),
    "waiting_not_worth": (
        reasons.waiting_not_worth(1),
        "Waiting: preempting a running job for it would cost more time than it saves.",
    ),
    "waiting_too_large": (
        reasons.waiting_too_large(5),
        "Waiting: needs 5 GPUs at the same time, and fewer can be shared now."
        " The others are out of service or used by jobs that cannot shrink.",
    ),
    "waiting_over_limit": (
        reasons.waiting_over_limit(4),
        "Waiting: needs 4 GPUs, more than a policy setting or the rest of its owner's limit"
        " allows. If no job of the owner ends, submit it with a smaller --min-gpus.",
    ),
    "past_use": (
        reasons.past_use("ann", 432_000.0, 3.04),
        "Past use of ann's jobs counts as 120 GPU hours, 3.0x an equal share: users with less go"
        " first.",
    ),
    "waiting_for_owner": (
        reasons.waiting_for_owner("ann", 1, 1, 1),
        "Waiting: ann may use 1 GPU and uses 1. It starts when another job of ann ends.",
    ),
    "on_hold": (
        reasons.on_hold("ann", "a-1"),
        "On hold, by ann. It can start again after: ones release a-1",
    ),
    "waiting_for_jobs": (
        reasons.waiting_for_jobs(["a-1", "b-2"]),
        "Waiting for the end of a-1, b-2.",
    ),
    "waiting_in_array": (
        reasons.waiting_in_array("a-1", 4),
        "Waiting: at most 4 tasks of array a-1 may run at a time.",
    ),
    "dependency_lost": (
        reasons.dependency_lost("a-1", "failed"),
        "It can never start, because a-1 has ended: failed (--after a-1)",
    ),
    "waiting_for_gpus": (
        reasons.waiting_for_gpus(2),
        "Waiting: needs 2 GPUs at the same time.",
    ),
    "waiting_behind": (
        reasons.waiting_behind(1),
        "Waiting for 1 GPU.",
    ),
    "waiting_by_rule": (
        reasons.waiting_by_rule(reasons.OTHERS_GAIN_MORE, 2),
        "Waiting for 2 GPUs: other jobs gain more from the GPUs.",
    ),
    "waiting_for_round": (
        reasons.waiting_for_round(600.0, 1),
        "Waiting: GPUs are assigned in the next round.",
    ),
    "waiting_for_turn": (
        reasons.waiting_for_turn(120.0),
        "Waiting for its turn of 2 min: jobs share the GPUs equally.",
    ),
    "keeps_after_failure": (
        reasons.keeps_after_failure(2),
        "Keeps 2 GPUs: its last change failed. The next try is after a pause, which doubles with"
        " each failure.",
    ),
    "failed": (
        reasons.failed("bert-12", reasons.last_worker_died("exit code 3"), 2, 2),
        "Its last worker died: exit code 3. Try 2 of 2: no tries are left."
        " Its output: ones logs bert-12",
    ),
    "start_failed": (
        reasons.failed("bert-12", reasons.start_failed(reasons.start_timed_out(300)), 1, 1),
        "Its start failed: its workers did not all call ones.join within 5 min."
        " Try 1 of 1: submit it with --retries to allow more. Its output: ones logs bert-12",
    ),
    "worker_died": (
        reasons.worker_died("n1/0", "killed by signal 9" + reasons.exit_hint(9)),
        "worker n1/0 died: killed by signal 9 (often: out of memory)",
    ),
    "memory_limit": (
        reasons.memory_limit(1024),
        "At most 1,024 samples fit on one GPU at once.",
    ),
    "end_message": (
        reasons.end_message("plateau"),
        "The accuracy has not improved within the patience of its stop rule.",
    ),
    "node_gone": (reasons.node_gone("n1"), "node n1 is gone"),
    "joining_timed_out": (
        reasons.joining_timed_out(300),
        "new workers did not call ones.join within 5 min",
    ),
    "switch_timed_out": (
        reasons.switch_timed_out(60),
        "its workers did not connect to each other within 60 s",
    ),
    "silent": (
        reasons.silent(120),
        "no report for 2 min: the worker hangs or lost its network",
    ),
    "refused": (
        reasons.refused(4.2, 12.0),
        "Refused: the GPUs that it needs cost 12 now, more than its value of 4.2."
        " Submit it later, with a higher priority, or with a later deadline.",
    ),
    "cancelled": (
        reasons.cancelled(reasons.time_limit(3600)),
        "Cancelled by its time limit of 60 min (--max-run)",
    ),
    "idle_workers": (
        reasons.idle_workers(["n0/1", "n0/3"], 4, 1800.0, 7200.0),
        "Of its 4 GPUs, 2 have been idle for 30 min: n0/1, n0/3."
        " A job that leaves all its GPUs idle is ended after 2.0 h.",
    ),
    "slow_workers": (
        reasons.slow_workers({"n0/1": 1.84}, 300.0),
        "A worker has taken longer for a step than the others for 5 min: n0/1 (1.8 times).",
    ),
    "idle_limit": (
        reasons.cancelled(reasons.idle_limit(3600.0)),
        "Cancelled by the limit of 60 min for idle GPUs (setting idle_end_minutes)",
    ),
    "quarantined": (
        reasons.quarantined("EpochFinished", "ValueError: nan"),
        "The service could not handle its event EpochFinished: ValueError: nan."
        " The event is quarantined (ones doctor); submit the job again",
    ),
}
#: parts of other messages, which the samples above contain
PARTS = {
    "precedence", "batch_limit", "takers", "last_worker_died", "start_timed_out", "exit_hint",
    "time_limit",
}  # fmt: skip


@pytest.mark.parametrize("name", SAMPLES)
def test_each_message_is_a_short_sentence_in_plain_english(name: str) -> None:
    stored, shown = SAMPLES[name]
    assert render(stored) == shown
    assert len(shown) <= MOST
    assert not DIALECT.search(shown)
    assert "⟨" not in shown
    assert shown == shown.strip()
    assert "  " not in shown
    if name in ("worker_died", "node_gone", "joining_timed_out", "switch_timed_out", "silent"):
        return  # the end of a sentence, such as "Its start failed: ..."
    assert shown[0].isupper()


def test_no_message_of_the_catalogue_is_without_a_sample() -> None:
    own = {
        name
        for name, function in inspect.getmembers(reasons, inspect.isfunction)
        if function.__module__ == reasons.__name__ and not name.startswith("_")
    }
    assert own == SAMPLES.keys() | PARTS


def test_a_job_that_the_reader_may_not_see_has_no_name() -> None:
    made_room = reasons.preempted(["bert-12", "vgg-7", "other-1"], reasons.HIGHER_PRIORITY)
    for seen, named in (
        (set(), "2 jobs of other users and 1 more"),
        ({"vgg-7"}, "vgg-7, a job of another user and 1 more"),
        ({"bert-12", "vgg-7"}, "bert-12, vgg-7 and 1 more"),
    ):
        assert render(made_room, seen.__contains__).startswith(
            f"Preempted: made room for {named}, which have a higher priority."
        )


def test_a_job_that_is_larger_than_the_limit_of_its_owner_does_not_wait_for_other_jobs() -> None:
    assert reasons.waiting_for_owner("ann", 2, 0, 4) == (
        "Waiting: needs 4 GPUs, but the limit of ann is 2. Submit it with fewer GPUs, or ask an"
        " admin for a higher limit."
    )


def test_a_job_with_its_minimum_is_not_told_of_a_saving() -> None:
    assert reasons.largest_saving(2, 0.0) == (
        "its minimum; each further GPU goes where it saves the most time"
    )


def test_the_history_shows_no_time_until_a_moment_that_has_passed() -> None:
    stored = reasons.waiting_for_round(600.0, 1)
    assert render(stored, live=lambda kind, number: f"[{kind} {number}]") == (
        "Waiting: GPUs are assigned in the next round [time 600]. [queue 1]"
    )
    assert "600" not in render(stored)


def test_the_jobs_that_got_the_gpus_of_a_preempted_job() -> None:
    assert reasons.takers([1, 2], {"a": [2, 3], "b": [4]}) == ["a"]
    assert reasons.takers([1], {"a": [2], "b": [4]}) == ["a", "b"], "at least those that started"


def test_texts_of_older_logs_are_shown_as_they_are() -> None:
    old = "waits, GPUs are worth more to others: about 3 min left on one GPU, place 2 of 2"
    assert render(old, lambda job: False, lambda kind, number: "x") == old
