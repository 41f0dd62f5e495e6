"""Trains with three trackers at once. Of two workers the main one dies once."""

import os
import signal
import sys
from pathlib import Path

import torch

import ones
from ones.integrations.trackers import MLflow, TensorBoard, WandB


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "shapes"))
    from task import dataset, loss_of, network  # type: ignore[import-not-found]

    out = Path(os.environ["OUT"])
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    job = ones.join(model, optimizer, dataset(), batch_size=16)
    trackers = [
        TensorBoard(job, out / "runs", url="https://boards.example/1"),
        MLflow(job, "digits", tracking_uri=f"sqlite:///{out}/mlflow.db"),
        WandB(job, project="digits", mode="offline", dir=str(out)),
    ]
    died = out / "died"
    for _ in job.epochs(8):
        for x, y in job.batches():
            loss = loss_of(model, x, y)
            if job.steps >= 20 and job.workers == 2 and job.is_main and not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            job.step(loss)
        for tracker in trackers:
            tracker.log(loss=loss.item())
    for tracker in trackers:
        tracker.close()


if __name__ == "__main__":
    main()
