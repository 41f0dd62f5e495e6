"""`ones-paper` as a policy: pure decisions, reasons, forecasts, settings."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from ones.core import Cluster, Event, Job, JobId, Plan
from ones.core.plan import Rescale, Start
from ones.errors import InvalidSettingError
from ones.policies import create
from ones.policies.ones_paper.policy import OnesPaper
from ones.runlog import encode
from ones.sim import Simulator
from ones.workload import Trace, TraceJob, Training, generate

KIND = "resnet50-imagenet"


def job(name: str, at: float, epochs: int = 20) -> TraceJob:
    return TraceJob(
        Job(id=JobId(name), submitted_at=at, kind=KIND, requested_batch=64, epochs=epochs),
        Training(kind=KIND, dataset_size=10_000, base_batch=64),
    )


def play(trace: Trace, gpus: int, **settings: Any) -> list[Event | Plan]:
    log: list[Event | Plan] = []
    policy = create("ones-paper", seed=1, **settings)
    simulator = Simulator(trace, Cluster.of(gpus), policy, mechanism="elastic", seed=1)
    simulator.run(log.append)
    assert len(simulator.scheduler.state.ended) == len(trace.jobs)
    return log


def plans(log: list[Event | Plan]) -> list[Plan]:
    return [entry for entry in log if isinstance(entry, Plan)]


def test_a_job_alone_starts_on_one_gpu_and_doubles_after_each_epoch() -> None:
    log = play(Trace.of("alone", [job("a", 0.0)]), 8)
    sizes = [
        action.allocation.n_gpus
        for plan in plans(log)
        for action in plan.actions
        if isinstance(action, Start | Rescale)
    ]
    assert sizes == [1, 2, 4, 8]
    batches = [
        action.allocation.batch
        for plan in plans(log)
        for action in plan.actions
        if isinstance(action, Rescale)
    ]
    assert batches == [128, 256, 512], "the local batch stays the same"


READINGS: list[dict[str, Any]] = [
    {"predictor": "gaussian-process", "throughput": "fitted", "placement": "stay"},
    {"predictor": "constant", "throughput": "interpolated", "placement": "least-moves"},
    {"update": "affected", "fill": "gain", "limits": "held", "batch": "largest"},
    {"update": "settled", "sigma": "median", "scale_down": "largest"},
    {"sigma": "arrivals", "scale_down": "printed", "fill": "length"},
    {"scale_down": "never", "population": 4, "generations": 3, "mutation": 0.5},
]


@pytest.mark.parametrize("reading", READINGS, ids=lambda r: ",".join(map(str, r.values())))
def test_every_reading_finishes_all_jobs(reading: dict[str, Any]) -> None:
    play(generate(jobs=8, seed=2, gap=5.0), 6, **reading)


def test_the_readings_name_every_option_of_every_part() -> None:
    parts = {f.name: set(f.metadata["options"]) for f in fields(OnesPaper.Settings)
             if f.metadata["options"]}  # fmt: skip
    defaults = OnesPaper.Settings()
    for name, options in parts.items():
        tried = {reading[name] for reading in READINGS if name in reading}
        assert options == tried | {getattr(defaults, name)}


def test_another_reading_makes_other_plans() -> None:
    trace = generate(jobs=8, seed=2, gap=5.0)
    seen = {tuple(map(encode, plans(play(trace, 6, **reading)))) for reading in READINGS[:3]}
    assert len(seen) == 3


def test_there_are_at_most_ten_numbers_to_set() -> None:
    numbers = [f for f in fields(OnesPaper.Settings) if f.type in ("int", "float")]
    assert 0 < len(numbers) <= 10


def test_a_setting_out_of_range_is_refused() -> None:
    wrong: list[dict[str, Any]] = [{"mutation": 1.5}, {"fill": "best"}, {"generations": 0}]
    for settings in wrong:
        with pytest.raises(InvalidSettingError, match=next(iter(settings))):
            create("ones-paper", **settings)


def test_jobs_are_given_reasons_and_forecasts() -> None:
    log = play(Trace.of("crowd", [job(f"j{i}", 1.0 + i, epochs=4) for i in range(5)]), 2)
    notes = [note for plan in plans(log) for note in plan.notes.values()]
    for start in ("Started on", "Waiting for", "Preempted: made room for"):
        assert any(note.startswith(start) for note in notes), start
    forecasts = [f for plan in plans(log) for f in plan.forecasts.values()]
    assert forecasts
    assert all(f.low <= f.eta <= f.high for f in forecasts)
