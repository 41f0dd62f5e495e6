"""`ones bench fidelity`: what is read from logs is what the simulator takes, and it runs live."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from ones.cli.client import Client
from ones.core.cluster import Cluster
from ones.core.events import NodeUp
from ones.core.job import JobId, SwitchCost
from ones.lab.bench_fidelity import RUNS, _folded, _order, bench_fidelity
from ones.lab.bench_fidelity_measure import Calibration, Watch
from ones.lab.bench_fidelity_sim import PacedPhysics, simulate
from ones.lab.bench_fidelity_trace import calibration_trace, measured_trace, submission
from ones.policies import create
from ones.runlog import VERSION, Header, LogWriter, RunLog, decode, encode
from ones.sim import Simulator
from ones.sim.physics import SwitchTimes
from ones.sim.recorded import RecordedPhysics
from ones.workload.recorded import read_recording
from ones.workload.trace import RecordedTraining

TIMES = SwitchTimes(
    first_start=4.0, newcomer=1.2, regroup=0.03, rescale=0.08, restart=3.1, notice=0.15, leave=0.25,
    stop=0.4, finish=0.02, clear=0.3, epoch=0.05, recover=1.1, warms_early=False,
)  # fmt: skip
TRUTH = Calibration(TIMES, ((1, 0.004), (8, 0.018)), {})
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
def learned(tmp_path_factory: pytest.TempPathFactory) -> Calibration:
    home, watch = tmp_path_factory.mktemp("logs"), Watch()
    for in_place in (True, False):
        watch.read(recorded(home / f"{in_place}.jsonl", in_place=in_place))
    return watch.calibration()


@pytest.mark.parametrize(
    "name", ["first_start", "rescale", "regroup", "restart", "leave", "finish", "clear"]
)
def test_what_is_measured_is_what_is_simulated(learned: Calibration, name: str) -> None:
    assert getattr(learned.times, name) == pytest.approx(getattr(TIMES, name), abs=0.02)


@pytest.mark.parametrize("name", ["newcomer", "notice", "stop", "recover", "epoch"])
def test_what_is_measured_in_steps_is_near_it(learned: Calibration, name: str) -> None:
    """An order waits for the end of a step: half of one in the mean, more or less in a few."""
    assert getattr(learned.times, name) == pytest.approx(getattr(TIMES, name), abs=0.12)


def test_steps_cost_what_they_did(learned: Calibration) -> None:
    for workers, seconds in learned.overhead:
        assert seconds == pytest.approx(TRUTH.overhead_seconds(workers), abs=0.001)
    assert not learned.times.warms_early


@pytest.mark.parametrize(("policy", "mechanism"), [("equi", "elastic"), ("fifo", "restart")])
def test_other_jobs_are_foretold_from_it(learned: Calibration, policy: str, mechanism: str) -> None:
    trace = measured_trace()
    lengths = []
    for calibration in (TRUTH, learned):
        state = simulate(trace, policy, mechanism, SLOTS, calibration)
        assert len(state.ended) == len(trace.jobs)
        assert sum(o.losses for o in state.ended.values()) == 1
        lengths.append(sum(o.completion_seconds for o in state.ended.values()))
    assert lengths[1] == pytest.approx(lengths[0], rel=0.03)


def test_the_trace_is_as_large_as_it_must_be() -> None:
    trace = measured_trace()
    assert len(trace.jobs) >= 12
    assert len(trace.kills) == 1
    assert {policy for policy, _ in RUNS} == {"ones", "tiresias", "optimus", "fifo"}
    for name, job in trace.named():
        body = submission(name, job, {}, "/")
        assert body["epochs"] == job.epochs
        assert str(job.kind.per_sample) in body["command"]


def test_the_order_is_told_by_pairs() -> None:
    def row(policy: str, live: float, simulated: float) -> dict[str, object]:
        return {
            "policy": policy, "mean_jct_seconds": live, "simulated_mean_jct_seconds": simulated,
            "jobs": 1, "slots": 1, "mean_jct_error_percent": 0.0, "max_job_error_percent": 0.0,
        }  # fmt: skip

    told = _order([row("a", 1.0, 1.1), row("b", 3.0, 2.0), row("c", 2.0, 2.1)])
    assert told["live_order"] == ["a", "c", "b"]
    assert told["simulated_order"] == ["a", "b", "c"]
    assert (told["pairs_in_order"], told["n"]) == (2, 3)


def test_a_recorded_run_takes_as_long_when_it_is_simulated_again(tmp_path: Path) -> None:
    """From nothing but its log: with what processes took to notice, to leave and to end."""
    log = recorded(tmp_path / "run.jsonl", in_place=True, kill=False)
    trace, left_out = read_recording(log)
    assert left_out == 0
    policy = create("equi", seed=0)
    simulator = Simulator(trace, Cluster.of(SLOTS, SLOTS), policy, mechanism="elastic")
    again = simulator.run().state.ended
    state, _ = _folded(log)
    lived = sum(o.completion_seconds for o in state.ended.values())
    assert sum(o.completion_seconds for o in again.values()) == pytest.approx(lived, rel=0.05)


def test_who_was_never_restarted_is_no_slower_to_come_again(tmp_path: Path) -> None:
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


@pytest.mark.slow
def test_three_jobs_live_and_simulated() -> None:
    calibration, row = bench_fidelity(Client, quick=True)
    assert calibration["first_start_ms"] > 0
    assert calibration["clear_n"] >= 1
    assert (row["jobs"], row["n"], row["slots"]) == (3, 3, 3)
    assert row["mean_jct_seconds"] > 1
    assert set(row["job_error_percent"]) == {"p00", "p01", "p02"}


@pytest.mark.soak
def test_the_simulated_jobs_take_about_as_long_as_the_live_ones() -> None:
    _, row = bench_fidelity(Client, quick=True)
    assert row["mean_jct_error_percent"] < 100  # how true it is, the full one says
