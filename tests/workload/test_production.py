"""Production traces as workloads: rows become jobs that last as long as they did."""

from __future__ import annotations

from pathlib import Path

import pytest

from ones.core import Cluster, EndReason, JobId
from ones.errors import InvalidFileError, UserError
from ones.lab.runs import at_load
from ones.policies import create
from ones.sim import Simulator
from ones.sim.lengths import expected_seconds, length_of, one_gpu_seconds
from ones.workload import Trace, Training, load_workload
from ones.workload.observed import ObservedJob, to_trace, window
from ones.workload.summary import load_of, summary_of

DATA = Path(__file__).parent.parent / "data"
SHARED = Path(__file__).parents[3] / "shared" / "data"


def load(name: str, **options: int) -> Trace:
    return load_workload(DATA / name, length_of, **options).trace


def test_philly_rows_keep_their_order_size_and_gaps() -> None:
    loaded = load_workload(DATA / "philly.csv", length_of)
    trace = loaded.trace
    assert loaded.format == "philly"
    assert loaded.left_out == 2  # 12 s, and 17,778 GPU-hours
    assert [e.job.requested_gpus for e in trace.jobs] == [1, 1, 8, 2]
    assert [e.job.submitted_at for e in trace.jobs] == [0.0, 2932.0, 6417.0, 8217.0]
    assert {e.job.owner for e in trace.jobs} == {"aaaaaa", "bbbbbb", "cccccc"}


def test_a_job_as_it_was_asked_for_lasts_as_long_as_its_row_says() -> None:
    trace = load("philly.csv")
    wanted = [2951.0, 66.0, 7200.0, 900.0]
    for entry, seconds in zip(trace.jobs, wanted, strict=True):
        assert isinstance(entry.training, Training)
        assert entry.job.requested_batch is not None
        lasts = expected_seconds(
            entry.training, entry.job.requested_gpus, entry.job.requested_batch
        )
        assert lasts == pytest.approx(seconds, rel=0.1)
    run = Simulator(trace, Cluster.of(16), create("fifo"), seed=1).run()
    for entry, seconds in zip(trace.jobs, wanted, strict=True):
        outcome = run.state.ended[entry.job.id]
        assert outcome.run_seconds == pytest.approx(seconds + 5, rel=0.2)


def test_alibaba_pods_without_a_gpu_or_a_start_are_no_jobs_and_failed_ones_fail() -> None:
    trace = load("alibaba.csv")
    assert [e.job.id for e in trace.jobs] == ["pod-0", "pod-1", "pod-4"]
    run = Simulator(trace, Cluster.of(16), create("fifo"), seed=1).run()
    reasons = {str(job): o.reason for job, o in run.state.ended.items()}
    assert reasons["pod-1"] is EndReason.FAILED
    assert reasons["pod-0"] is EndReason.CONVERGED
    assert run.state.ended[trace.jobs[1].job.id].run_seconds == pytest.approx(2000, rel=0.25)


def test_pollux_applications_become_kinds() -> None:
    trace = load("pollux.csv")
    assert [e.job.kind for e in trace.jobs] == [
        "resnet18-cifar10", "googlenet-cifar10", "resnet50-imagenet",
    ]  # fmt: skip
    assert [e.job.requested_gpus for e in trace.jobs] == [6, 6, 16]


def test_a_load_is_met_by_stretching_all_gaps_alike() -> None:
    trace = load("philly.csv")
    busy = at_load(trace, 0.5, 64)
    assert load_of(busy, 64, one_gpu_seconds) == pytest.approx(0.5, rel=1e-3)
    times = [e.job.submitted_at for e in trace.jobs]
    ratios = [e.job.submitted_at / t for e, t in zip(busy.jobs, times, strict=True) if t]
    assert max(ratios) == pytest.approx(min(ratios), rel=1e-3)


def test_a_window_is_a_stretch_of_the_trace_that_the_seed_chooses() -> None:
    rows = [ObservedJob(f"r{i}", float(i), 100.0, 1) for i in range(100)]
    first, other = window(rows, 10, 0), window(rows, 10, 1)
    assert [r.name for r in first] == [f"r{i}" for i in range(10)]
    assert other != first
    assert [r.at for r in other] == [other[0].at + i for i in range(10)]
    assert len(window(rows, None, 3)) == 100


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("timestamp,duration,num_gpus\n2017-10-09 07:01:55,x,1\n", r":2: duration: 'x' is not"),
        ("timestamp,duration,num_gpus\nyesterday,5,1\n", r":2: timestamp: 'yesterday' is not"),
        ("timestamp,duration,num_gpus\n2017-10-09 07:01:55,500,0\n", r":2: num_gpus: 0 is less"),
        ("timestamp,duration,num_gpus\n2017-10-09 07:01:55,-5,1\n", r":2: duration: -5 is less"),
        ("timestamp,duration,num_gpus\n2017-10-09 07:01:55,500\n", r":2: not as many values"),
        ("name,time,application,num_replicas\na,0,doom,1\n", r":2: application: unknown app"),
        ("name,time,application,num_replicas\na,0,bert,inf\n", r":2: num_replicas: 'inf' is not"),
        (
            "name,time,application,num_replicas\na,0,bert,9999999\n",
            r":2: num_replicas: '9999999' is",
        ),
        (
            "name,time,application,num_replicas\na,1e13,bert,1\n",
            r":2: time: .1e13. is more",
        ),
        ("name,time,application,num_replicas\na,inf,bert,1\n", r":2: time: 'inf' is not a fin"),
        ("name,time,application,num_replicas\na,0,bert,1\na,1,bert,1\n", r":3: name: 'a' appears"),
        ("num_gpu,creation_time,deletion_time,scheduled_time\n1,5,1,9\n", r":2: deletion_time: 1"),
    ],
)
def test_a_malformed_row_is_refused_with_its_place(
    tmp_path: Path, text: str, complaint: str
) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(InvalidFileError, match=complaint):
        load_workload(path, length_of)


@pytest.mark.parametrize("gpus", [1, 4, 8, 16])
@pytest.mark.parametrize("died", [False, True])
@pytest.mark.parametrize("seconds", [1_000.0, 20_000.0])
def test_a_row_lasts_as_long_as_it_says_whatever_its_size_and_end(
    gpus: int, died: bool, seconds: float
) -> None:
    rows = [ObservedJob(f"r{i}", 1e6 * i, seconds * (1 + i), gpus, died=died) for i in range(4)]
    trace = to_trace("rows", rows, length_of)
    run = Simulator(trace, Cluster.of(16), create("fifo"), seed=1).run()
    for row in rows:
        outcome = run.state.ended[JobId(row.name)]
        # the noise of the stop rule is in it
        assert outcome.run_seconds == pytest.approx(row.seconds + 5, rel=0.25)
        assert (outcome.reason is EndReason.FAILED) == died


def test_a_file_with_nothing_to_run_says_why(tmp_path: Path) -> None:
    path = tmp_path / "short.csv"
    path.write_text("timestamp,duration,num_gpus\n2017-10-09 07:01:55,5,1\n")
    with pytest.raises(UserError, match="no row is left: all are shorter than 60 s"):
        load_workload(path, length_of)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the public traces are not beside this checkout")
@pytest.mark.parametrize(
    ("name", "format_", "jobs"),
    [
        ("philly.csv", "philly", 74_428),
        ("openb_pod_list_default.csv", "alibaba", 5_669),
        ("pollux-workload-1.csv", "pollux", 160),
    ],
)
def test_the_real_files_are_read(name: str, format_: str, jobs: int) -> None:
    loaded = load_workload(SHARED / name, length_of)
    assert (loaded.format, len(loaded.trace.jobs)) == (format_, jobs)
    summary = summary_of(loaded.trace, 64, one_gpu_seconds)
    assert summary["jobs"] == jobs
    if format_ == "philly":
        assert summary["gap_variation"] > 10  # bursty, as the file is


@pytest.mark.skipif(not SHARED.is_dir(), reason="the public traces are not beside this checkout")
@pytest.mark.parametrize("policy", ["fifo", "equi"])
def test_a_stretch_of_philly_runs_to_its_end(policy: str) -> None:
    trace = load_workload(SHARED / "philly.csv", length_of, jobs=60, seed=4).trace
    run = Simulator(
        at_load(trace, 0.8, 64), Cluster.of(64), create(policy), mechanism="elastic", seed=1
    ).run()
    assert len(run.state.ended) == 60
