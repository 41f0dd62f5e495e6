"""One run per job in TensorBoard, MLflow and W&B, although the main worker dies on the way."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.train.conftest import zygote
from tests.train.elastic import elastic

__all__ = ["zygote"]

pytest.importorskip("tensorboard", reason="needs the extra trackers")
pytest.importorskip("mlflow", reason="needs the extra trackers")
pytest.importorskip("wandb", reason="needs the extra wandb")

WORKERS = [1.0, 2.0, 1.0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")  # of MLflow's store
def test_a_job_has_one_run_that_tells_of_its_rescales(zygote: str, tmp_path: Path) -> None:
    job = elastic(zygote, tmp_path, "0:1x16,8:2x16", SCRIPT="tracked.py")
    job.play()
    assert (job.out / "died").exists()
    assert changes(of_tensorboard(job.out / "runs", "ones/workers")) == WORKERS
    assert len(of_tensorboard(job.out / "runs", "loss")) == 8
    assert changes(of_mlflow(job.out / "mlflow.db", "ones/workers")) == WORKERS
    assert len(of_mlflow(job.out / "mlflow.db", "loss")) == 8
    # each main worker has a directory of its own, of the same run
    parts = [re.sub(r"^offline-run-\d+_\d+-", "", path.name) for path in of_wandb(job.out)]
    assert len(parts) == 2
    assert len(set(parts)) == 1
    (run,) = (path.name for path in (job.out / "runs").iterdir())
    assert set(parts) == {run}
    job.nothing_is_left()


def changes(values: list[float]) -> list[float]:
    """The values without repetitions: a new main worker logs what is the case."""
    return [v for i, v in enumerate(values) if i == 0 or v != values[i - 1]]


def of_tensorboard(directory: Path, name: str) -> list[float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (run,) = directory.iterdir()
    events = EventAccumulator(str(run))
    events.Reload()
    return [event.value for event in events.Scalars(name)]


def of_mlflow(database: Path, name: str) -> list[float]:
    from mlflow import MlflowClient

    client: Any = MlflowClient(f"sqlite:///{database}")
    experiment = client.get_experiment_by_name("digits")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    history = client.get_metric_history(run.info.run_id, name)
    return [metric.value for metric in sorted(history, key=lambda m: (m.step, m.timestamp))]


def of_wandb(directory: Path) -> list[Path]:
    return sorted((directory / "wandb").glob("offline-run-*"))
