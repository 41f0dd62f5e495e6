"""Progress of fixed-size jobs: from the worker's report to the job's figures, and `torchrun`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ones.control.live.jobs import NOW, LiveJob
from ones.control.readmodels.job_cards import WorkerPlaces, card_of
from ones.control.submission import Submission
from ones.core import events as ev
from ones.core.job import Job, JobId
from ones.wire import messages as wire
from tests.control.by_hand import JOINED, ByHand
from tests.control.world import World

A = JobId("a-1")
SCRIPT = """
import os
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import ones
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(40):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    ones.progress(step + 1, 40)
os.write(1, f"rank {dist.get_rank()} of {dist.get_world_size()}\\n".encode())  # in one piece
dist.destroy_process_group()
"""


def part(number: int) -> wire.Epoch:
    return wire.Epoch(epoch=number, steps=5, samples=0, step_seconds=0.5, planned_epochs=20)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[ByHand]:
    bench = ByHand(tmp_path)
    yield bench
    bench.close()


def test_reports_of_a_job_that_never_joins_count_and_a_start_from_zero_is_noticed(
    bench: ByHand,
) -> None:
    submission = Submission(name=A, argv=("x",), cwd="/", elastic=False)
    bench.engine.live.jobs[A] = LiveJob(A, submission)
    given = Job(id=A, submitted_at=0.0, min_gpus=2, max_gpus=2, elastic=False, retries=1)
    bench.engine.live.emit(ev.JobSubmitted(NOW, given))
    bench.turn()
    bench.engine.exits.started(bench.launch(A))
    bench.turn()
    bench.say(A, wire.Steps(epoch=1, steps=0, samples=0, planned_epochs=20), part(1), part(2))
    record = bench.scheduler.state.records[A]
    assert (record.epochs, record.job.epochs, record.steps) == (2, 20, 10)
    assert record.held is not None
    assert record.held.batch == 0, "its batch is not known"
    bench.die(A)
    bench.engine.exits.started(bench.launch(A))
    bench.turn()
    bench.say(A, wire.Steps(epoch=1, steps=0, samples=0, planned_epochs=20))
    assert bench.scheduler.state.records[A].epochs == 0
    bench.say(A, part(1))
    assert bench.scheduler.state.records[A].epochs == 1


def test_the_link_of_a_tracker_is_on_the_card(bench: ByHand) -> None:
    bench.submit(A)
    bench.say(A, JOINED, wire.Ready(), wire.TrackerLink("https://runs.example/1"))
    record = bench.scheduler.state.records[A]
    card = card_of(record, WorkerPlaces.of(record, None), None, elastic=True)
    assert card.at(0.0)["tracker"] == "https://runs.example/1"


# seldom, a rank of torch 2.13 aborts in destroy_process_group ("terminate called without ...")
@pytest.mark.soak
def test_torchrun_has_a_process_for_each_gpu_and_the_first_one_reports(
    make_world: Callable[..., World],
) -> None:
    world = make_world(slots=2)
    script = world.root / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", str(script)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    job = world.run(command, gpus=2, env=env)
    card = world.wait_end(job, seconds=300.0)
    assert card["state"] == "finished", world.evidence(job)
    lines = sorted(line for line in world.output(job).splitlines() if line.startswith("rank"))
    assert lines == ["rank 0 of 2", "rank 1 of 2"]
    assert (card["epochs"], card["planned_epochs"]) == (20, 20), world.evidence(job)
