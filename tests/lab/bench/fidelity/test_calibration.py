"""Times that are read from run logs are those that the simulator takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from ones.core.cluster import Cluster
from ones.core.events import NodeUp
from ones.core.job import JobId, SwitchCost
from ones.lab.bench.fidelity.benchmark import final_state
from ones.lab.bench.fidelity.calibration import Calibrator, MeasuredTimes
from ones.lab.bench.fidelity.paced_jobs import calibration_trace, mixed_trace
from ones.lab.bench.fidelity.simulated_run import PacedPhysics, simulate
from ones.policies import create
from ones.runlog import VERSION, Header, LogWriter, RunLog, decode, encode
from ones.sim import Simulator
from ones.sim.physics import SwitchTimes
from ones.sim.recorded import RecordedPhysics
from ones.workload.recorded import read_recording
from ones.workload.trace import RecordedTraining

TIMES = SwitchTimes(
    first_start=4.0, join=1.2, regroup=0.03, rescale=0.08, restart=3.1, notice=0.15, leave=0.25,
    stop=0.4, finish=0.02, clear=0.3, epoch=0.05, recover=1.1, warms_early=False,
)  # fmt: skip


TRUTH = MeasuredTimes(TIMES, ((1, 0.004), (8, 0.018)), {})


SLOTS = 8


def recorded(path: Path, *, in_place: bool, kill: bool = True) -> RunLog:
    """The calibration trace, as if it had been run where the truth is."""
    trace, cluster = calibration_trace(), Cluster.of(SLOTS, SLOTS)
    header = Header(
        version=VERSION, software="0", policy="equi", seed=0, nodes=tuple(cluster.nodes.values()),
        switch_cost=SwitchCost(),
    )  # fmt: skip
    simulator = Simulator(
        trace.simulated(), cluster, create("equi", seed=0), mechanism="elastic", in_place=in_place,
        physics=lambda training: PacedPhysics(training, TRUTH),
        kills=[(k.at, JobId(k.job)) for k in trace.kills if kill],
    )  # fmt: skip
    with LogWriter(path, header) as log:
        simulator.run(log)
    return RunLog(path)


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> MeasuredTimes:
    home, calibrator = tmp_path_factory.mktemp("logs"), Calibrator()
    for in_place in (True, False):
        calibrator.read(recorded(home / f"{in_place}.jsonl", in_place=in_place))
    return calibrator.result()


@pytest.mark.parametrize(
    "name", ["first_start", "rescale", "regroup", "restart", "leave", "finish", "clear"]
)
def test_what_is_measured_is_what_is_simulated(learned: MeasuredTimes, name: str) -> None:
    assert getattr(learned.times, name) == pytest.approx(getattr(TIMES, name), abs=0.02)


@pytest.mark.parametrize("name", ["join", "notice", "stop", "recover", "epoch"])
def test_what_is_measured_in_steps_is_near_it(learned: MeasuredTimes, name: str) -> None:
    """An order waits for the end of a step: half of one in the mean, more or less in a few."""
    assert getattr(learned.times, name) == pytest.approx(getattr(TIMES, name), abs=0.12)


def test_steps_cost_what_they_did(learned: MeasuredTimes) -> None:
    for workers, seconds in learned.overhead:
        assert seconds == pytest.approx(TRUTH.overhead_seconds(workers), abs=0.001)
    assert not learned.times.warms_early


@pytest.mark.parametrize(("policy", "mechanism"), [("equi", "elastic"), ("fifo", "restart")])
def test_other_jobs_are_foretold_from_it(
    learned: MeasuredTimes, policy: str, mechanism: str
) -> None:
    trace = mixed_trace()
    lengths = []
    for calibration in (TRUTH, learned):
        state = simulate(trace, policy, mechanism, calibration)
        assert len(state.ended) == len(trace.jobs)
        assert sum(o.losses for o in state.ended.values()) == 1
        lengths.append(sum(o.completion_seconds for o in state.ended.values()))
    assert lengths[1] == pytest.approx(lengths[0], rel=0.03)


def test_a_recorded_run_takes_as_long_when_it_is_simulated_again(tmp_path: Path) -> None:
    """From nothing but its log: with what processes took to notice, to leave and to end."""
    log = recorded(tmp_path / "run.jsonl", in_place=True, kill=False)
    trace, left_out = read_recording(log)
    assert left_out == 0
    policy = create("equi", seed=0)
    simulator = Simulator(trace, Cluster.of(SLOTS, SLOTS), policy, mechanism="elastic")
    again = simulator.run().state.ended
    state, _ = final_state(log)
    lived = sum(o.completion_seconds for o in state.ended.values())
    assert sum(o.completion_seconds for o in again.values()) == pytest.approx(lived, rel=0.05)


def test_without_restarts_a_restart_is_assumed_as_fast_as_a_start(tmp_path: Path) -> None:
    """A service's log has no restart: the paper's 20 s are not what its processes take."""
    path = tmp_path / "run.jsonl"
    recorded(path, in_place=True, kill=False)
    lines = path.read_text().splitlines(keepends=True)
    header, cluster = decode(lines[0]), Cluster.of(SLOTS, SLOTS)
    assert isinstance(header, Header)
    up = [encode(NodeUp(0.0, node.id, node.gpus)) + "\n" for node in cluster.nodes.values()]
    path.write_text("".join([encode(structs.replace(header, nodes=())) + "\n", *up, *lines[1:]]))
    trace, _ = read_recording(RunLog(path))
    for entry in trace.jobs:
        assert isinstance(entry.training, RecordedTraining)
        assert RecordedPhysics(entry.training).switch.restart == pytest.approx(4.0, abs=0.1)
