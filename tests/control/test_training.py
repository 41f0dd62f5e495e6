"""Real training under the service: `ones.join`, torch, gloo; workers and controllers killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

import pytest

from tests.control.world import World
from tests.processes import alive_below, wait_for

SCRIPT = """
import os, sys, time, torch, ones
torch.manual_seed(0)
x = torch.randn(256, 16)
y = (x.sum(1) > 0).long()
model = torch.nn.Linear(16, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(x, y)
job = ones.join(model, optimizer, data, batch_size=32)
for epoch in job.epochs(int(sys.argv[1])):
    for a, b in job.batches():
        time.sleep(0.02 if os.path.exists("hurry") else 0.2)
        job.step(torch.nn.functional.cross_entropy(model(a), b))
    job.report(accuracy=(model(x).argmax(1) == y).float().mean().item())
    print("epoch", epoch, flush=True)
"""
DIES_ONCE = """
import os, shutil
kept = os.environ.get("ONES_CHECKPOINTS", "none")
if os.path.exists("died"):
    shutil.rmtree(kept, ignore_errors=True)
def die(epoch):
    if epoch == 2 and not os.path.exists("died"):
        open("died", "w").close()
        raise ValueError("row 7 is broken.")
"""
SLOW = 300.0


def hurry(world: World) -> None:
    """From now on training takes no longer than it must."""
    (world.root / "hurry").touch()


def submit(world: World, epochs: int, **more: object) -> str:
    script = world.root / "train.py"
    script.write_text(SCRIPT)
    return world.run([sys.executable, str(script), str(epochs)], elastic=True, **more)


def test_a_job_grows_loses_a_worker_and_its_controller_and_ends_well(
    make_world: Callable[..., World],
) -> None:
    world = make_world(policy="equi", slots=3)
    job = submit(world, 90, retries=1)
    wait_for(
        lambda: world.job(job)["gpus"] == 3 and world.job(job)["state"] == "running",
        seconds=SLOW,
    )
    alive = [p for p in world.launches(job) if p["alive"]]
    os.kill(alive[1]["pid"], signal.SIGKILL)
    wait_for(lambda: world.job(job)["losses"] == 1, seconds=SLOW)
    wait_for(
        lambda: any("Continued with the remaining workers" in line for line in world.story(job)),
        seconds=SLOW,
    )
    world.restart()
    hurry(world)
    card = world.wait_end(job, seconds=SLOW)
    assert card["state"] == "finished", world.story(job)
    assert (card["epochs"], card["planned_epochs"]) == (90, 90)
    assert card["samples"] == 90 * 256, "every sample of every epoch, once"
    assert (card["failures"], card["losses"]) == (0, 1)
    assert card["accuracy"] > 0.9
    wait_for(lambda: not alive_below(world.dir.runs))


def test_a_start_from_zero_and_the_exception_before_it_are_told(
    make_world: Callable[..., World],
) -> None:
    world = make_world(policy="equi", slots=1)
    script = world.root / "train.py"
    script.write_text(
        DIES_ONCE + SCRIPT.replace("    job.report", "    die(epoch)\n    job.report")
    )
    hurry(world)
    job = world.run([sys.executable, str(script), "4"], elastic=True, retries=1, fixed_batch=True)
    card = world.wait_end(job, seconds=SLOW)
    lines = world.story(job)
    assert card["state"] == "finished", lines
    assert any(line.endswith("exit code 1: ValueError: row 7 is broken.") for line in lines), lines
    assert [line for line in lines if line.startswith("Training began again")] == [
        "Training began again from the start: no checkpoint was found. Lost: 2 epochs done before."
    ]
    said = "ones: no checkpoint was found: training starts from zero; "
    told = [line for line in world.output(job).splitlines() if line.startswith(said)]
    assert len(told) == 1, world.evidence(job)
    assert (card["epochs"], card["samples"], card["failures"]) == (4, 4 * 256, 1)
    batches = {batch for _, batch in world.get(f"/api/jobs/{job}/curves")["batch"]}
    assert batches == {32}


@pytest.mark.slow
def test_a_job_is_preempted_to_nothing_and_goes_on_from_its_checkpoint(
    make_world: Callable[..., World],
) -> None:
    world = make_world(policy="fifo", slots=1)
    job = submit(world, 30)
    wait_for(lambda: world.job(job)["epochs"] >= 3, seconds=SLOW)
    world.down()
    hurry(world)
    kept = list((world.dir.checkpoints / job).rglob("*"))
    assert kept, "SIGTERM saves"
    world.up()
    card = world.wait_end(job, seconds=SLOW)
    assert (card["state"], card["epochs"], card["failures"]) == ("finished", 30, 0)
    assert card["samples"] == 30 * 256


@pytest.mark.slow
def test_two_jobs_share_under_the_paper_s_policy(make_world: Callable[..., World]) -> None:
    world = make_world(policy="ones", slots=2)
    first = submit(world, 60)
    wait_for(lambda: world.job(first)["epochs"] >= 1, seconds=SLOW)
    second = submit(world, 20)
    hurry(world)
    for job in (first, second):
        assert world.wait_end(job, seconds=2 * SLOW)["state"] == "finished", world.story(job)


GATED = SCRIPT.replace(
    "for a, b in job.batches():",
    """while epoch >= 2 and not os.path.exists(sys.argv[2]):
        time.sleep(0.02)
    for a, b in job.batches():""",
).replace("import sys,", "import os, sys,")
GATED += "print(((model(x).argmax(1) == y).float().mean().item()))\n"


@pytest.mark.parametrize("end", ["killed", "interrupted"])
def test_what_was_reported_while_the_controller_was_away_is_not_lost(
    end: str, make_world: Callable[..., World]
) -> None:
    """By kill -9, or by Ctrl-C of `ones up --foreground`; the job ends before it is back."""
    world = make_world(policy="fifo", slots=1)
    script, go = world.root / "train.py", world.root / "go"
    script.write_text(GATED)
    job = world.run([sys.executable, str(script), "8", str(go)], elastic=True)
    wait_for(lambda: world.job(job)["epochs"] == 2, seconds=SLOW)
    before = world.job(job)["accuracy"]
    if end == "killed":
        world.kill()
    else:
        assert world.process is not None
        world.process.send_signal(signal.SIGINT)
        world.process.wait(30)
        world.http.close()
    go.touch()
    wait_for(lambda: list(world.dir.runs.glob("live/*/*/*/exit.json")), seconds=SLOW)
    world.up()
    card = world.wait_end(job, seconds=SLOW)
    assert (card["state"], card["epochs"], card["losses"]) == ("finished", 8, 0), world.story(job)
    assert card["samples"] == 8 * 256
    assert card["accuracy"] != before
    assert str(card["accuracy"]) in world.output(job), "as its own output says"
    world.restart()
    assert (world.job(job)["epochs"], world.job(job)["accuracy"]) == (8, card["accuracy"])
