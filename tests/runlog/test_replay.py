"""The same events to a fresh scheduler of the same policy: the same plans, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from ones.core import Cluster, Plan
from ones.errors import InvalidFileError
from ones.policies import create
from ones.runlog import VERSION, Difference, Header, LogWriter, Replay, RunLog, decode, replay
from ones.sim.run import Simulator
from ones.workload import generate

CLUSTER = Cluster.of(16)


def run(path: Path, policy: str = "equi", seed: int = 1, *, jobs: int = 12) -> Path:
    simulator = Simulator(
        generate(jobs=jobs, seed=seed, gap=15.0),
        CLUSTER,
        create(policy, seed=seed),
        mechanism="elastic",
        seed=seed,
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
        simulator.run(log)
    return path


def replayed(path: Path) -> Replay:
    log = RunLog(path)
    return replay(log, create(log.header.policy, seed=log.header.seed))


def is_plan(line: str) -> bool:
    return isinstance(decode(line), Plan)


def change(path: Path, number: int, *lines: str) -> str:
    """Put these lines in the place of that one, counted from 1; give what stood there."""
    before = path.read_text().splitlines()
    after = [*before[: number - 1], *lines, *before[number:]]
    path.write_text("".join(f"{line}\n" for line in after))
    return before[number - 1]


def plan_lines(path: Path) -> list[int]:
    return [n for n, line in enumerate(path.read_text().splitlines(), 1) if is_plan(line)]


@pytest.mark.parametrize("policy", ["fifo", "equi"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_replay_equals_its_run(tmp_path: Path, policy: str, seed: int) -> None:
    path = run(tmp_path / "run.jsonl", policy, seed)
    found = replayed(path)
    plans = len(plan_lines(path))
    events = path.read_text().count("\n") - 1 - plans
    assert found == Replay(events, plans, None)
    assert plans > 10


@pytest.mark.parametrize("policy", ["fifo", "equi"])
def test_the_same_seed_gives_the_same_log_byte_for_byte(tmp_path: Path, policy: str) -> None:
    once, again = run(tmp_path / "a.jsonl", policy), run(tmp_path / "b.jsonl", policy)
    assert once.read_bytes() == again.read_bytes()


def test_a_plan_that_was_changed_is_found_with_its_line(tmp_path: Path) -> None:
    path = run(tmp_path / "run.jsonl")
    line = plan_lines(path)[5]
    recorded = path.read_text().splitlines()[line - 1]
    other = recorded.replace('"at":', '"at":1')
    change(path, line, other)
    assert replayed(path).difference == Difference(line, other, recorded)
    assert replayed(path).plans == 5


def test_a_plan_that_was_taken_out_is_found_at_the_line_that_stands_there_now(
    tmp_path: Path,
) -> None:
    path = run(tmp_path / "run.jsonl")
    line = plan_lines(path)[5]
    taken = change(path, line)
    assert replayed(path).difference == Difference(line, None, taken)


def test_a_plan_that_was_put_in_is_found_with_its_line(tmp_path: Path) -> None:
    path = run(tmp_path / "run.jsonl")
    line = plan_lines(path)[5]
    plan = path.read_text().splitlines()[line - 1]
    change(path, line, plan, plan)
    assert replayed(path).difference == Difference(line + 1, plan, None)


def test_a_plan_before_any_event_is_a_difference(tmp_path: Path) -> None:
    path = run(tmp_path / "run.jsonl")
    plan = path.read_text().splitlines()[plan_lines(path)[0] - 1]
    header = path.read_text().splitlines()[0]
    change(path, 1, header, plan)
    assert replayed(path) == Replay(0, 0, Difference(2, plan, None))


def test_a_log_that_ends_anywhere_is_the_same_up_to_there(tmp_path: Path) -> None:
    """After Ctrl-C the plan for the last event may be missing: that is not a difference."""
    lines = run(tmp_path / "run.jsonl", jobs=4).read_bytes().splitlines(keepends=True)
    path = tmp_path / "cut.jsonl"
    for n in range(1, len(lines), 19):
        for end in (b"", lines[n][:-1], lines[n][:9]):
            path.write_bytes(b"".join(lines[:n]) + end)
            log = RunLog(path)
            found = replay(log, create("equi", seed=1))
            assert found.difference is None
            assert log.cut_off == bool(end)
            assert found.open_end == is_plan(lines[n].decode())


def test_a_log_with_decreasing_times_is_refused_with_its_line(tmp_path: Path) -> None:
    path = run(tmp_path / "run.jsonl", jobs=4)
    with path.open("a") as file:
        file.write('{"type":"Woke","at":0.5}\n')
    last = path.read_bytes().count(b"\n")
    with pytest.raises(InvalidFileError, match=rf":{last}: Woke at 0\.5 s came after an event at"):
        replayed(path)


def test_progress_counts_the_events(tmp_path: Path) -> None:
    path = run(tmp_path / "run.jsonl", "fifo", jobs=4)
    seen: list[int] = []
    found = replay(RunLog(path), create("fifo", seed=1), seen.append)
    assert seen == list(range(1, found.events + 1))
