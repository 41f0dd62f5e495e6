"""A restart restores the scheduler: from the last snapshot and the tail, or from all lines."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ones.core import Cluster, Plan, Scheduler, drive
from ones.core import events as ev
from ones.core.plan import Action, Finish
from ones.errors import InvalidFileError
from ones.policies import create
from ones.runlog import (
    VERSION,
    Entry,
    Header,
    LogWriter,
    RunLog,
    SnapshottingLog,
    forget_snapshots,
    recover,
    tail_limit,
)
from ones.sim.run import Simulator
from ones.testing.chaos import ChaosEngine
from ones.testing.invariants import check_invariants
from ones.workload import Incident, Trace, generate
from tests.random_policy import RandomPolicy

CLUSTER = Cluster.of(16)
POLICIES = ("fifo", "equi")


def troubled_trace(jobs: int, seed: int) -> Trace:
    """Some of the paper's jobs; on the way a node dies and returns, one drains, one job goes."""
    quiet = generate(jobs=jobs, seed=seed, gap=20.0)
    nodes = list(CLUSTER.nodes)
    at = quiet.jobs[jobs // 2].job.submitted_at
    incidents: list[Incident] = [
        ev.NodeDown(at, nodes[0]),
        ev.NodeUp(at + 60.0, nodes[0], 4),
        ev.NodeDraining(at + 90.0, nodes[1]),
        ev.NodeUp(at + 150.0, nodes[1], 4),
        ev.CancelRequested(at + 5.0, quiet.jobs[jobs // 2].job.id),
    ]
    return Trace.of(quiet.name, quiet.jobs, incidents)


def run(path: Path, policy: str, *, jobs: int = 30, tail: int = 150, seed: int = 1) -> Scheduler:
    """Runs it, writes its log with a snapshot every N events, and returns its scheduler."""
    simulator = Simulator(
        troubled_trace(jobs, seed), CLUSTER, create(policy, seed=seed), mechanism="elastic"
    )
    header = Header(
        version=VERSION,
        software="0",
        policy=policy,
        seed=seed,
        nodes=tuple(CLUSTER.nodes.values()),
        switch_cost=simulator.scheduler.state.switch_cost,
    )
    with LogWriter(path, header) as log:
        simulator.run(SnapshottingLog(log, simulator.scheduler, lambda live_jobs: tail))
    return simulator.scheduler


def snapshot_of(log: Path) -> Path:
    return log.with_name(log.name + ".snapshot")


def ended_of(log: Path) -> Path:
    return log.with_name(log.name + ".ended")


def recovered(path: Path, *, use_snapshot: bool = True) -> Scheduler:
    log = RunLog(path)
    return recover(log, create(log.header.policy, seed=log.header.seed), use_snapshot=use_snapshot)


def assert_same(scheduler: Scheduler, other: Scheduler) -> None:
    check_invariants(scheduler.state)
    assert scheduler.state.snapshot() == other.state.snapshot()
    assert list(scheduler.state.ended) == list(other.state.ended)
    assert list(scheduler.state.free) == list(other.state.free)
    assert list(scheduler.state.waiting.visible()) == list(other.state.waiting.visible())
    assert scheduler.policy.save() == other.policy.save()


@pytest.mark.parametrize("policy", POLICIES)
def test_snapshot_and_tail_give_the_same_scheduler_as_the_whole_log(
    tmp_path: Path, policy: str
) -> None:
    path = tmp_path / "run.jsonl"
    scheduler = run(path, policy)
    lines = json.loads(snapshot_of(path).read_text())["lines"]
    assert 1 < lines < path.read_bytes().count(b"\n"), "both a snapshot and a tail"
    assert_same(recovered(path), scheduler)
    assert_same(recovered(path, use_snapshot=False), scheduler)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("tail", [1, 7, 40])
def test_it_does_not_matter_when_snapshots_are_taken(
    tmp_path: Path, policy: str, tail: int
) -> None:
    path = tmp_path / "run.jsonl"
    scheduler = run(path, policy, jobs=8, tail=tail)
    assert_same(recovered(path), scheduler)


def test_snapshots_change_nothing_in_the_log(tmp_path: Path) -> None:
    run(tmp_path / "few.jsonl", "equi", jobs=8, tail=10**9)
    run(tmp_path / "many.jsonl", "equi", jobs=8, tail=1)
    assert not snapshot_of(tmp_path / "few.jsonl").exists()
    few, many = (tmp_path / f"{name}.jsonl" for name in ("few", "many"))
    assert few.read_bytes() == many.read_bytes()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_that_has_ended_is_written_once(tmp_path: Path, policy: str) -> None:
    path = tmp_path / "run.jsonl"
    scheduler = run(path, policy)
    outcomes = [json.loads(line)["id"] for line in ended_of(path).read_text().splitlines()]
    assert max(Counter(outcomes).values()) == 1
    assert outcomes == list(scheduler.state.ended)[: len(outcomes)]
    saved = json.loads(snapshot_of(path).read_text())
    assert saved["ended"] == len(outcomes) > 0
    assert saved["state"]["ended"] == []


@pytest.mark.parametrize("policy", POLICIES)
def test_a_crash_in_the_middle_of_a_line_is_recovered_from_up_to_it(
    tmp_path: Path, policy: str
) -> None:
    path = tmp_path / "run.jsonl"
    run(path, policy)
    path.write_bytes(path.read_bytes()[:-10])
    log = RunLog(path)
    scheduler = recover(log, create(policy, seed=1))
    assert log.cut_off
    assert_same(scheduler, recovered(path, use_snapshot=False))


def test_outcomes_that_a_crash_left_after_the_last_snapshot_count_once(tmp_path: Path) -> None:
    """The ended jobs are written before the snapshot that counts them."""
    path = tmp_path / "run.jsonl"
    scheduler = run(path, "fifo")
    with ended_of(path).open("a") as file:
        file.write(ended_of(path).read_text().splitlines()[0] + "\n")
        file.write('{"type":"Outcome","id":"cut o')
    assert_same(recovered(path), scheduler)


def test_a_tail_longer_than_any_snapshot_left_out_is_read(tmp_path: Path) -> None:
    """Between two snapshots the tail grows; whenever the crash comes, the scheduler is the same."""
    path = tmp_path / "run.jsonl"
    run(path, "equi", jobs=8, tail=100)
    whole = path.read_bytes()
    saved = json.loads(snapshot_of(path).read_text())
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for end in [e for e in ends if e >= saved["offset"]][::5]:
        path.write_bytes(whole[:end])
        assert_same(recovered(path), recovered(path, use_snapshot=False))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), tail=st.integers(1, 60))
def test_snapshot_and_tail_recover_the_scheduler_of_any_run(
    tmp_path_factory: pytest.TempPathFactory, seed: int, tail: int
) -> None:
    """In a world that loses workers, fails orders and kills nodes, half way and at the end."""
    path = tmp_path_factory.mktemp("chaos") / "run.jsonl"
    cluster = Cluster.of(10, 4)
    scheduler = Scheduler(cluster, RandomPolicy(seed))
    header = Header(
        version=VERSION,
        software="0",
        policy="random",
        seed=seed,
        nodes=tuple(cluster.nodes.values()),
        switch_cost=scheduler.state.switch_cost,
    )
    with LogWriter(path, header) as log:
        keep = SnapshottingLog(log, scheduler, lambda live_jobs: tail)

        def record(entry: Entry) -> None:
            if not isinstance(entry, Plan) and log.entries % 50 == 40:
                log.flush()
                assert_same(recover(RunLog(path), RandomPolicy(seed)), scheduler)
            keep(entry)

        drive(scheduler, ChaosEngine(cluster, 6, seed, trouble=0.15), record)
    assert_same(recover(RunLog(path), RandomPolicy(seed)), scheduler)


@cache
def recorded(policy: str) -> tuple[Entry, ...]:
    simulator = Simulator(troubled_trace(10, 3), CLUSTER, create(policy), mechanism="elastic")
    entries: list[Entry] = []
    simulator.run(entries.append)
    return tuple(entries)


def test_orders_without_a_decision_are_in_the_runs_below() -> None:
    finished = [
        action
        for entry in recorded("equi")
        if isinstance(entry, Plan)
        for action in entry.actions
        if isinstance(action, Finish)
    ]
    assert finished, "else the next laws say nothing"


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(POLICIES), st.data())
def test_a_log_that_ends_anywhere_gives_a_valid_scheduler(policy: str, data: st.DataObject) -> None:
    entries = recorded(policy)
    cut = data.draw(st.integers(0, len(entries)))
    scheduler = Scheduler(CLUSTER, create(policy))
    for entry in entries[:cut]:
        scheduler.recall(entry)
    check_invariants(scheduler.state)
    scheduler.resume()
    check_invariants(scheduler.state)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(POLICIES), st.data())
def test_after_a_crash_before_a_plan_the_orders_that_were_due_are_given(
    policy: str, data: st.DataObject
) -> None:
    """What the policy decided is lost and asked for again; what the event called for is not."""
    entries = recorded(policy)
    orphans = [
        i for i, entry in enumerate(entries[1:], 1) if isinstance(entry, Plan) and entry.actions
    ]
    lost = data.draw(st.sampled_from(orphans))
    plan = entries[lost]
    assert isinstance(plan, Plan)
    scheduler = Scheduler(CLUSTER, create(policy))
    for entry in entries[:lost]:
        scheduler.recall(entry)
    due: tuple[Action, ...] = scheduler.resume().actions
    assert plan.actions[: len(due)] == due, "they come first in the plan that was lost"


def test_a_snapshot_that_goes_beyond_its_log_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    run(path, "fifo", jobs=8)
    header = path.read_bytes().splitlines(keepends=True)[0]
    path.write_bytes(header)
    with pytest.raises(InvalidFileError, match=r"snapshot: offset: \d+ is beyond the end of run"):
        recovered(path)
    forget_snapshots(path)
    assert recovered(path).state.submitted == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not a snapshot: '' is not JSON: Expecting value at column 1"),
        ("[]", "is not a snapshot: list indices must be integers or slices, not str"),
        ("{}", "is not a snapshot: 'version'"),
        ('{"version":99}', f"version: 99 is not supported; this version of ones reads {VERSION}"),
        (f'{{"version":{VERSION}}}', "is not a snapshot: 'offset'"),
        (
            f'{{"version":{VERSION},"offset":1,"lines":1,"ended":0,"policy":{{}},"state":7}}',
            "is not a snapshot: 7 is not an object",
        ),
    ],
)
def test_a_damaged_snapshot_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "run.jsonl"
    run(path, "fifo", jobs=8)
    snapshot_of(path).write_text(content)
    with pytest.raises(InvalidFileError) as caught:
        recovered(path)
    assert str(caught.value) == f"{snapshot_of(path)}: {message}"


def test_ended_jobs_that_are_missing_or_damaged_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    run(path, "fifo")
    lines = ended_of(path).read_text().splitlines(keepends=True)
    ended_of(path).write_text("".join(lines[:-1]))
    with pytest.raises(
        InvalidFileError, match=rf"has {len(lines) - 1} ended jobs, the snapshot needs"
    ):
        recovered(path)
    ended_of(path).write_text("".join(["{}\n", *lines[1:]]))
    with pytest.raises(InvalidFileError, match=r"run\.jsonl\.ended:1: id: is missing"):
        recovered(path)
    ended_of(path).unlink()
    with pytest.raises(InvalidFileError, match=r"run\.jsonl\.ended: cannot be read: No such file"):
        recovered(path)


def test_a_log_with_decreasing_times_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    run(path, "fifo", jobs=8, tail=10**9)
    with path.open("a") as file:
        file.write('{"type":"Woke","at":0.5}\n')
    last = path.read_bytes().count(b"\n")
    with pytest.raises(InvalidFileError, match=rf":{last}: Woke at 0\.5 s came after an event at"):
        recovered(path)


def test_a_new_log_forgets_the_snapshots_of_an_old_one_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    run(path, "fifo", jobs=8, tail=5)
    assert snapshot_of(path).exists()
    run(path, "fifo", jobs=8, tail=10**9, seed=2)
    assert not snapshot_of(path).exists()
    assert not ended_of(path).exists()


@pytest.mark.parametrize(("live", "limit"), [(0, 10_000), (2_500, 10_000), (100_000, 400_000)])
def test_a_tail_may_grow_with_the_jobs_that_live(live: int, limit: int) -> None:
    assert tail_limit(live) == limit
