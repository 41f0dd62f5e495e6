"""Experiment trackers for elastic jobs: one run per job, whatever its workers.

    from ones.integrations.trackers import MLflow  # or TensorBoard, WandB

    job = ones.join(...)
    tracker = MLflow(job, experiment="digits")
    ...
    tracker.log(loss=loss, accuracy=accuracy)

All workers make the tracker and call `log`; only the main worker writes. If another worker becomes
the main one, or the job starts again, it continues the same run: the run's name comes from the job.
Rescales are logged as they happen: `ones/workers`, `ones/batch` and `ones/lr`.
"""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ones.train.elastic_job import ElasticJob
from ones.wire.environment import CHECKPOINTS


def run_id(environment: Mapping[str, str] = os.environ) -> str:
    """The name of this job's run: the same in all its workers, and after each restart.

    A script that runs alone has a new one each time.

    >>> run_id({"ONES_JOB": "bert-7", "ONES_CHECKPOINTS": "/state/checkpoints/bert-7"})
    'bert-7-4406c5'
    """
    job, place = environment.get("ONES_JOB"), environment.get(CHECKPOINTS, "")
    if job is None:
        return f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}"
    return f"{job}-{hashlib.sha256(place.encode()).hexdigest()[:6]}"


class Tracker(ABC):
    """A run that the main worker writes. `url`: where it is shown, for the job's page."""

    def __init__(self, job: ElasticJob, *, url: str | None = None) -> None:
        self.id = run_id()
        self._job, self._url, self._is_open = job, url, False
        self._shown: tuple[int, int, float] | None = None  # workers, batch, learning rate
        elastic = job._elastic
        if elastic is not None:
            elastic.context.on_switched.append(lambda was_first: self._rescaled())

    def log(self, *, step: int | None = None, **values: float) -> None:
        """Logs values at a step, by default the job's optimizer steps so far."""
        if self._opened():
            self._show(step)
            self._write({name: float(value) for name, value in values.items()}, self._at(step))

    def close(self) -> None:
        """Ends this worker's part of the run. Call it at the end of the script."""
        if self._is_open:
            self._is_open, self._shown = False, None
            self._close()

    def _opened(self) -> bool:
        """Whether this worker writes: the main one, and no other."""
        if not self._job.is_main:
            self.close()
            return False
        if not self._is_open:
            url = self._open()
            self._is_open = True
            if self._url or url:
                self._job.link(self._url or url or "")
        return True

    def _rescaled(self) -> None:
        if self._opened():
            self._show(None)

    def _show(self, step: int | None) -> None:
        job = self._job
        shown = (job.workers, job.batch, job.lr)
        if shown == self._shown:
            return
        self._shown = shown
        names = ("ones/workers", "ones/batch", "ones/lr")
        self._write(dict(zip(names, map(float, shown), strict=True)), self._at(step))

    def _at(self, step: int | None) -> int:
        return int(self._job.steps) if step is None else step

    @abstractmethod
    def _open(self) -> str | None:
        """Opens the run, or continues it. Returns its address, if the tracker has one."""

    @abstractmethod
    def _write(self, values: dict[str, float], step: int) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...


class TensorBoard(Tracker):
    """Event files in `directory`/the run's name: one run, a file for each main worker."""

    def __init__(
        self, job: ElasticJob, directory: str | os.PathLike[str] = "runs", *, url: str | None = None
    ) -> None:
        super().__init__(job, url=url)
        self._directory = Path(directory) / self.id
        self._writer: Any = None

    def _open(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # steps beyond this one were undone by a restart
        self._writer = SummaryWriter(str(self._directory), purge_step=self._at(None))

    def _write(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()  # this worker may end at any time

    def _close(self) -> None:
        self._writer.close()


class MLflow(Tracker):
    """A run of MLflow, found by its tag `ones.run`.

    `tracking_uri`: a server, or `sqlite:///PATH`; else MLFLOW_TRACKING_URI.
    """

    def __init__(
        self,
        job: ElasticJob,
        experiment: str = "Default",
        *,
        tracking_uri: str | None = None,
        url: str | None = None,
    ) -> None:
        super().__init__(job, url=url)
        self._experiment, self._uri = experiment, tracking_uri
        self._client: Any = None
        self._run = ""

    def _open(self) -> str | None:
        from mlflow import MlflowClient, get_tracking_uri

        self._client = client = MlflowClient(self._uri)
        known = client.get_experiment_by_name(self._experiment)
        experiment = known.experiment_id if known else client.create_experiment(self._experiment)
        found = client.search_runs([experiment], f"tags.`ones.run` = '{self.id}'")
        run = found[0] if found else client.create_run(
            experiment, run_name=self.id, tags={"ones.run": self.id}
        )  # fmt: skip
        self._run = run.info.run_id
        client.update_run(self._run, status="RUNNING")
        server = self._uri or get_tracking_uri()
        if not server.startswith(("http://", "https://")):
            return None
        return f"{server.rstrip('/')}/#/experiments/{experiment}/runs/{self._run}"

    def _write(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._client.log_metric(self._run, name, value, step=step)

    def _close(self) -> None:
        if self._job.is_main:  # else another worker goes on
            self._client.set_terminated(self._run)


class WandB(Tracker):
    """A run of Weights & Biases with the run's name as its id, resumed if it is there.

    `options`: those of `wandb.init`. Offline, each main worker writes a directory of its own with
    the same id; `wandb sync --append` makes one run of them.
    """

    def __init__(self, job: ElasticJob, *, url: str | None = None, **options: Any) -> None:
        super().__init__(job, url=url)
        self._options = {"id": self.id, "name": self.id, "resume": "allow", **options}
        self._run: Any = None

    def _open(self) -> str | None:
        import wandb

        self._run = wandb.init(**self._options)
        url: str | None = self._run.url
        return url

    def _write(self, values: dict[str, float], step: int) -> None:
        # not W&B's own step, which may not go back after a restart
        self._run.log({**values, "step": step})

    def _close(self) -> None:
        self._run.finish()
