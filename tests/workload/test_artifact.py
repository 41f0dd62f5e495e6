"""The workload of the paper's authors: facts of the generator, and the reader of their trace."""

from __future__ import annotations

from collections import Counter
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from ones.core import Cluster
from ones.core.schedule import Allocation
from ones.errors import InvalidFileError, InvalidSettingError
from ones.lab.runs import Run, RunSpec
from ones.sim import KindPhysics
from ones.sim.lengths import epochs_needed, expected_seconds, length_of, one_gpu_seconds
from ones.stopping import Track, after_epoch
from ones.workload import (
    Training,
    generate,
    generate_artifact,
    load_workload,
    numbers_of,
    paper_numbers,
    read_artifact_trace,
    read_trace,
    write_trace,
)

NUMBERS = numbers_of("artifact")
HEADER = "time,model,task,epoch_size,patience,batch_size,lr,max_lr,target_acc,num_gpus"
COLA = "0,bert,cola,8000,5,16,5.00E-06,2.00E-05,0.8,2"
INCEPTION = "7,inception_v3,imagenet,20000,10,32,5.00E-04,0.008,0.55,16"
MRPC = "9,bert,mrpc,3600,5,16,5.00E-06,2.00E-05,0.8,2"


def made(tmp_path: Path, *rows: str, header: str = HEADER) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_all_twenty_types_come_equally_often_with_whole_gaps_of_up_to_a_minute() -> None:
    trace = generate_artifact(jobs=400, seed=1)
    types = Counter(
        (entry.training.kind, entry.training.dataset_size, entry.training.run)
        for entry in trace.jobs
        if isinstance(entry.training, Training)
    )
    assert len(types) == 20
    assert set(types.values()) == {20}
    arrivals = np.array([entry.job.submitted_at for entry in trace.jobs])
    gaps = np.diff(arrivals)
    assert arrivals[0] == 0
    assert set(gaps) <= set(range(61))
    assert gaps.max() >= 58
    assert gaps.mean() == pytest.approx(30, abs=3)
    assert gaps.std() == pytest.approx(17.6, abs=1.5)
    assert [entry.job.submitted_at for entry in generate_artifact(jobs=400, seed=2).jobs] != list(
        arrivals
    )


def test_a_job_asks_as_in_the_authors_trace() -> None:
    jobs = {e.job.kind: e.job for e in generate_artifact(jobs=400, seed=1).jobs}
    asked = {kind: (j.requested_gpus, j.requested_batch, j.max_batch) for kind, j in jobs.items()}
    assert asked["bert-cola"] == (2, 32, 64)
    assert asked["bert-sst2"] == (8, 256, 256)
    assert asked["resnet18-cifar10"] == (4, 1024, 4096)
    assert asked["vgg16-cifar10"] == (4, 512, 2048)
    assert asked["alexnet-imagenet"] == (16, 1024, 1024)
    stop = jobs["alexnet-imagenet"].stop
    assert (stop.target_accuracy, stop.patience, stop.joint, stop.min_gain) == (
        0.25,
        20,
        True,
        0.01,
    )
    assert jobs["bert-cola"].stop.patience == 5


@pytest.mark.parametrize("entry", NUMBERS.types, ids=lambda e: f"{e.kind}-{e.dataset_size}-{e.run}")
def test_a_recorded_type_ends_after_its_epochs_and_lasts_its_seconds(entry: object) -> None:
    recorded = next(found for found in NUMBERS.types if found is entry)
    kind = NUMBERS.kind(recorded.kind)
    base, gpus = int(kind.base_batch), int(kind.request_gpus or 1)
    training = Training(
        kind=recorded.kind, dataset_size=recorded.dataset_size, classes=recorded.classes,
        base_batch=base, numbers="artifact", run=recorded.run,
    )  # fmt: skip
    physics = KindPhysics(training)
    rule = next(
        e.job.stop for e in generate_artifact(jobs=400, seed=1).jobs if e.job.kind == recorded.kind
    )
    track, reason, epoch = Track(), None, -1
    while reason is None:
        epoch += 1  # 0: the evaluation before training
        track, reason = after_epoch(
            rule, track, loss=physics.loss(epoch), accuracy=physics.accuracy(epoch, 0.0)
        )
    assert epoch == recorded.epochs == epochs_needed(training, base * gpus)
    assert expected_seconds(training, gpus, base * gpus) == pytest.approx(
        recorded.seconds, rel=0.02
    )
    assert physics.loss(0.0) == pytest.approx(recorded.first_loss)


def test_googlenet_has_its_recorded_rates_on_two_to_four_gpus() -> None:
    """The only type that was recorded at several sizes: samples/s with the input pipeline."""
    training = Training(
        kind="googlenet-cifar10", dataset_size=40000, base_batch=256, numbers="artifact"
    )
    physics = KindPhysics(training)
    for gpus, rate in ((2, 6368), (3, 9397), (4, 11244)):
        allocation = Allocation.even(list(Cluster.of(gpus).gpus()), 256 * gpus, None)
        steps = -(-40000 // (256 * gpus))
        seconds = steps * physics.step_seconds(allocation) + physics.epoch_rules.load
        assert 40000 / seconds == pytest.approx(rate, rel=0.08)


def test_vgg16_on_cifar_is_the_large_net_bound_by_communication() -> None:
    kind = NUMBERS.kind("vgg16-cifar10")
    assert kind.parameters > 138e6
    assert NUMBERS.kind("vgg16-imagenet").parameters == kind.parameters
    assert paper_numbers().kind("vgg16-cifar10").parameters < 15e6


def test_only_the_artifact_has_the_authors_mechanism() -> None:
    rules = {
        name: KindPhysics(
            Training(kind="bert-cola", dataset_size=5000, base_batch=16, numbers=name)
        ).epoch_rules
        for name in ("paper", "calibrated", "artifact")
    }
    assert rules["artifact"].restart
    assert rules["artifact"].evaluation
    for name in ("paper", "calibrated"):
        assert not rules[name].restart
        assert rules[name].evaluation is None
    assert numbers_of("calibrated").costs == paper_numbers().costs


def test_the_calibrated_kinds_have_the_lengths_that_their_file_says() -> None:
    calibrated = numbers_of("calibrated")
    by_kind: dict[str, list[float]] = {}
    for entry in generate(jobs=50, seed=1, gap=12.0, scatter=0.0, numbers="calibrated").jobs:
        by_kind.setdefault(entry.job.kind, []).append(one_gpu_seconds(entry.training))
        assert entry.job.stop.target_epochs == calibrated.kind(entry.job.kind).stop_epochs
    for kind, seconds in by_kind.items():
        mean = sum(seconds) / len(seconds)
        assert mean == pytest.approx(calibrated.kind(kind).one_gpu_seconds, rel=0.02)


def test_the_authors_trace_is_read(tmp_path: Path) -> None:
    path = made(tmp_path, COLA, INCEPTION, MRPC, MRPC)
    trace = read_artifact_trace(path)
    first, second, third, fourth = trace.jobs
    assert (first.job.kind, first.job.requested_gpus, first.job.requested_batch) == (
        "bert-cola", 2, 32,
    )  # fmt: skip
    assert first.job.max_batch == 64
    assert second.job.submitted_at == 7
    assert second.job.max_batch == 512
    assert isinstance(second.training, Training)
    assert (second.training.kind, second.training.classes) == ("inceptionv3-imagenet", 20)
    runs = [e.training.run for e in (third, fourth) if isinstance(e.training, Training)]
    assert runs == [0, 1]  # MRPC was recorded twice
    assert load_workload(path, length_of, jobs=2).trace == read_artifact_trace(
        made(tmp_path, COLA, INCEPTION)
    )


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (COLA.replace("8000", "8k"), "epoch_size: '8k' is not a whole number"),
        (COLA.replace("0,bert", "-1,bert"), "time: '-1' is not in 0..1e+12"),
        (COLA.replace("0,bert", "nan,bert"), "time: 'nan' is not a number"),
        (COLA.replace("8000", "7000"), "epoch_size: 7000 is not a known size of bert-cola: 5000"),
        (COLA.replace("bert", "gpt"), "model: 'gpt' on 'cola' is not a known kind of job"),
        (COLA.replace("2.00E-05", "1.00E-06"), "max_lr: 1e-06 is below lr 5e-06"),
        (COLA.replace("0.8,2", "1.8,2"), "target_acc: '1.8' is not in 0..1"),
        (COLA.removesuffix("2") + "0", "num_gpus: '0' is not in 1..1.04858e+06"),
        (COLA.removesuffix(",2"), "not 10 values, as there are columns"),
    ],
)
def test_a_wrong_row_is_named_with_file_line_field_and_value(
    tmp_path: Path, row: str, message: str
) -> None:
    path = made(tmp_path, COLA, row)
    with pytest.raises(InvalidFileError) as caught:
        read_artifact_trace(path)
    assert str(path) in str(caught.value)
    assert "3" in str(caught.value).removeprefix(str(path))[:12]
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_rows_out_of_order_and_files_without_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidFileError, match="time: 0 is below 7 of the row before"):
        read_artifact_trace(made(tmp_path, INCEPTION, COLA))
    with pytest.raises(InvalidFileError, match="holds no job"):
        read_artifact_trace(made(tmp_path))
    with pytest.raises(InvalidFileError, match="num_gpus: the column is missing"):
        read_artifact_trace(made(tmp_path, header=HEADER.removesuffix(",num_gpus")))


def test_a_generated_trace_survives_our_own_format(tmp_path: Path) -> None:
    trace = generate_artifact(jobs=60, seed=3)
    text = StringIO()
    write_trace(trace, text)
    path = tmp_path / "ours.csv"
    path.write_text(text.getvalue())
    assert read_trace(path).jobs == trace.jobs


def test_settings_that_the_workload_does_not_have_are_refused() -> None:
    with pytest.raises(InvalidSettingError, match="requested GPUs of the authors' trace"):
        Run(RunSpec(policy="fifo", workload="paper-artifact", requests="short"))
    with pytest.raises(InvalidSettingError, match="start_up: -1 is not"):
        Run(RunSpec(policy="fifo", workload="paper-artifact", jobs=2, start_up=-1))


def test_the_start_up_time_is_a_part_of_every_execution() -> None:
    def execution(start_up: float) -> float:
        spec = RunSpec(policy="fifo", workload="paper-artifact", jobs=1, seed=1, start_up=start_up)
        found = Run(spec).carry_out()["mean_exec"]
        assert isinstance(found, float)
        return found

    assert execution(30.0) - execution(0.0) == pytest.approx(30.0)
