"""Timelines: every GPU-second of a run belongs to one job, with the batch it trained."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

import pytest

from ones.core.actions import adopt
from ones.core.cluster import Cluster, Gpu, NodeId
from ones.core.events import (
    JobDescribed,
    JobEnded,
    JobSubmitted,
    NodeDown,
    NodeUp,
    Rescaled,
    RescaleFailed,
    Woke,
    WorkerLeft,
    WorkerReady,
)
from ones.core.job import EndReason, Generation, Job, JobId
from ones.core.plan import Plan, Rescale, Start
from ones.core.schedule import Allocation
from ones.core.state import State
from ones.core.transitions import apply
from ones.policies import create
from ones.report import RunTimeline, timeline_of
from ones.runlog import Entry
from ones.sim.run import Simulator
from ones.workload import Trace, generate
from ones.workload.trace import Incident

A = JobId("a")
G0, G1, G2 = (Gpu(NodeId("n0"), i) for i in range(3))


@dataclass(frozen=True)
class _Run:
    cluster: Cluster
    entries: list[Entry]
    state: State
    timeline: RunTimeline


FAILURES = (
    NodeDown(60.0, NodeId("n1")),
    NodeUp(200.0, NodeId("n1"), 4),
    NodeUp(90.0, NodeId("new"), 2),
    NodeDown(300.0, NodeId("n0")),
)


@pytest.fixture(
    scope="module",
    params=[
        ("fifo", "checkpoint", ()),
        ("fifo", "checkpoint", FAILURES),
        ("equi", "elastic", ()),
        ("equi", "elastic", FAILURES),
        ("equi", "checkpoint", FAILURES),
    ],
    ids=lambda p: f"{p[0]}-{p[1]}-{len(p[2])}-incidents",
)
def run(request: pytest.FixtureRequest) -> _Run:
    policy, mechanism, incidents = request.param
    return _run(policy, mechanism, incidents)


def _run(policy: str, mechanism: str, incidents: tuple[Incident, ...]) -> _Run:
    cluster = Cluster.of(12)
    jobs = generate(jobs=14, seed=4, gap=12).jobs
    trace = Trace.of("paper seed 4", jobs, incidents)
    entries: list[Entry] = []
    simulator = Simulator(trace, cluster, create(policy), mechanism=mechanism)
    state = simulator.run(entries.append).state
    state.book()
    return _Run(cluster, entries, state, timeline_of(cluster, entries))


def test_no_gpu_has_two_workers_at_once(run: _Run) -> None:
    by_gpu = defaultdict(list)
    for segment in run.timeline.segments:
        assert segment.start < segment.end
        by_gpu[segment.gpu].append(segment)
    for segments in by_gpu.values():
        for one, next_ in pairwise(segments):
            assert one.end <= next_.start


def test_the_segments_are_all_the_busy_time_there_was(run: _Run) -> None:
    total = sum(segment.end - segment.start for segment in run.timeline.segments)
    assert total == pytest.approx(run.state.busy_gpu_seconds, rel=1e-6)
    of_job: dict[JobId, float] = defaultdict(float)
    for segment in run.timeline.segments:
        of_job[segment.job] += segment.end - segment.start
    for job, outcome in run.state.ended.items():
        assert of_job[job] == pytest.approx(outcome.gpu_seconds, rel=1e-6)


def test_local_batches_add_up_to_what_the_state_holds(run: _Run) -> None:
    """Between any two entries, for every job that no order is changing."""
    state = State(run.cluster)
    segments = sorted(run.timeline.segments, key=lambda s: s.start)
    begun, running = 0, list[int]()
    checked = 0
    for entry, next_ in pairwise(run.entries):
        if isinstance(entry, Plan):
            adopt(state, entry)
        else:
            apply(state, entry)
        if next_.at <= entry.at:
            continue
        while begun < len(segments) and segments[begun].start <= entry.at:
            running.append(begun)
            begun += 1
        running = [i for i in running if segments[i].end > entry.at]
        batch: dict[JobId, int] = defaultdict(int)
        gpus: dict[JobId, int] = defaultdict(int)
        for i in running:
            gpus[segments[i].job] += 1
            if segments[i].phase == "training":
                batch[segments[i].job] += segments[i].batch
        for job, record in state.records.items():
            assert gpus[job] == len(record.occupied)
            if record.in_flight is None and record.held is not None:
                assert batch[job] == record.held.batch
                checked += 1
    assert checked > 100


def test_segments_cover_the_gpu_seconds_of_each_job(run: _Run) -> None:
    areas: dict[JobId, float] = defaultdict(float)
    for segment in run.timeline.segments:
        areas[segment.job] += segment.end - segment.start
    for job, outcome in run.state.ended.items():
        assert areas[job] == pytest.approx(outcome.gpu_seconds, rel=1e-6)


def test_every_job_is_submitted_and_ends_once(run: _Run) -> None:
    timeline, ended = run.timeline, run.state.ended
    assert timeline.submissions == {job: ended[job].submitted_at for job in timeline.submissions}
    assert len(timeline.submissions) == 14
    assert {job: (e.at, e.reason) for job, e in timeline.ends.items()} == {
        job: (outcome.ended_at, outcome.reason) for job, outcome in ended.items()
    }


def test_the_queue_is_a_step_function(run: _Run) -> None:
    times, lengths = run.timeline.queue_times, run.timeline.queue_lengths
    assert len(times) == len(lengths)
    assert all(one < next_ for one, next_ in pairwise(times))
    assert all(one != next_ for one, next_ in pairwise(lengths))
    assert lengths[-1] == 0


def test_down_times_are_kept_for_each_node_and_no_worker_is_there_meanwhile() -> None:
    timeline = _run("equi", "elastic", FAILURES).timeline
    assert timeline.down == {
        "n1": ((60.0, 200.0),),
        "new": ((0.0, 90.0),),
        "n0": ((300.0, timeline.end),),
    }
    assert [gpu.node for gpu in timeline.gpus] == ["n0"] * 4 + ["n1"] * 4 + ["n2"] * 4 + ["new"] * 2
    for segment in timeline.segments:
        for start, end in timeline.down.get(segment.gpu.node, ()):
            assert segment.end <= start or segment.start >= end


def test_a_worker_starts_then_trains_and_a_new_batch_begins_a_new_segment() -> None:
    one, two = Generation(1), Generation(2)
    grown = Allocation.even([G0, G1], 100, max_local_batch=25)
    entries: list[Entry] = [
        JobSubmitted(0.0, Job(id=A, submitted_at=0.0)),
        Plan(number=1, at=0.0, actions=(Start(A, Allocation.as_scripted([G0])),)),
        WorkerReady(10.0, A, one, G0),
        JobDescribed(at=10.0, job=A, generation=one, dataset_size=1000, base_batch=64),
        Plan(number=2, at=20.0, actions=(Rescale(A, grown),)),
        WorkerReady(25.0, A, two, G1),
        Rescaled(26.0, A, two, 1.0),
        JobEnded(40.0, A, EndReason.FINISHED),
        WorkerLeft(41.0, A, two, G0),
        WorkerLeft(42.0, A, two, G1),
    ]
    timeline = timeline_of(Cluster.of(3), _timed(entries))
    seen = [
        (s.gpu, s.start, s.end, s.batch, s.micro_steps, s.phase)
        for s in sorted(timeline.segments, key=lambda s: s.gpu)
    ]
    assert seen == [
        (G0, 0.0, 10.0, 0, 1, "starting"),
        (G0, 10.0, 26.0, 64, 1, "training"),
        (G0, 26.0, 41.0, 50, 2, "training"),
        (G1, 20.0, 26.0, 50, 2, "starting"),
        (G1, 26.0, 42.0, 50, 2, "training"),
    ]


def _timed(entries: list[Entry]) -> list[Entry]:
    """A plan has the time of the event before it; where none is written, time passes by `Woke`."""
    timed: list[Entry] = []
    for entry in entries:
        if isinstance(entry, Plan) and timed and timed[-1].at < entry.at:
            timed.append(Woke(entry.at))
        timed.append(entry)
    return timed


def test_a_start_that_fails_has_never_trained() -> None:
    generation = Generation(1)
    entries: list[Entry] = [
        JobSubmitted(0.0, Job(id=A, submitted_at=0.0, retries=1)),
        Plan(number=1, at=0.0, actions=(Start(A, Allocation.even([G0, G1, G2], 96)),)),
        WorkerReady(10.0, A, generation, G0),
        NodeDown(12.0, NodeId("n0")),
    ]
    timeline = timeline_of(Cluster.of(3), entries)
    assert {(s.gpu, s.start, s.end, s.phase) for s in timeline.segments} == {
        (gpu, 0.0, 12.0, "starting") for gpu in (G0, G1, G2)
    }


def test_a_worker_that_is_late_for_a_failed_start_does_not_train() -> None:
    generation = Generation(1)
    entries: list[Entry] = [
        JobSubmitted(0.0, Job(id=A, submitted_at=0.0, retries=1)),
        Plan(number=1, at=0.0, actions=(Start(A, Allocation.even([G0, G1], 96)),)),
        WorkerReady(10.0, A, generation, G0),
        RescaleFailed(12.0, A, generation, "timeout"),
        WorkerReady(13.0, A, generation, G1),
        WorkerLeft(14.0, A, generation, G0),
        WorkerLeft(14.0, A, generation, G1),
    ]
    timeline = timeline_of(Cluster.of(3), entries)
    assert [(s.start, s.end, s.phase) for s in timeline.segments] == [(0.0, 14.0, "starting")] * 2


def test_workers_that_are_there_at_the_end_of_a_log_are_shown_until_then() -> None:
    whole = _run("fifo", "checkpoint", ())
    half = whole.entries[: len(whole.entries) // 2]
    timeline = timeline_of(whole.cluster, half)
    assert timeline.end == half[-1].at
    assert max(segment.end for segment in timeline.segments) == timeline.end


def test_an_empty_log_is_an_empty_timeline() -> None:
    timeline = timeline_of(Cluster.of(4), [])
    assert (timeline.begin, timeline.end, timeline.segments) == (0.0, 0.0, ())
    assert len(timeline.gpus) == 4
