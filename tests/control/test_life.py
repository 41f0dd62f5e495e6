"""Jobs from submission to their end, with real processes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.control.world import World
from tests.processes import alive_below, is_alive, wait_for


def test_an_elastic_job_trains_reports_and_ends(world: World) -> None:
    job = world.submit(3, 0.2)
    card = world.wait_end(job)
    assert card["state"] == "finished", world.story(job)
    assert card["epochs"] == 3, "the last report is not lost when others are done before"
    assert card["samples"] == 300
    assert abs(card["accuracy"] - 0.875) < 1e-9
    assert card["elastic"]
    assert (
        abs(card["queue_seconds"] + card["run_seconds"] - (card["ended_at"] - card["submitted_at"]))
        < 1e-6
    )
    assert "Joined: 100 samples, batch 10, 1.0 kB of parameters." in world.story(job)
    assert "epoch 3" in world.output(job)
    curves = world.get(f"/api/jobs/{job}/curves")
    assert [round(v, 3) for _, v in curves["loss"]] == [1.0, 0.5, 0.333]
    wait_for(lambda: not alive_below(world.dir.runs / "live" / job), "nothing of it stays")


def test_a_job_grows_onto_free_slots_and_shrinks_for_others(
    make_world: Callable[..., World],
) -> None:
    world = make_world(policy="equi")
    first = world.submit(100_000, 0.4)
    wait_for(lambda: world.job(first)["gpus"] == 4 and world.job(first)["state"] == "running")
    end = world.gate()
    second = world.submit(4, 0.3, f"end-when={end}")
    wait_for(lambda: world.job(second)["epochs"] >= 1)
    wait_for(lambda: [world.job(job)["gpus"] for job in (first, second)] == [2, 2], "not shared")
    end.open()
    assert world.wait_end(second)["state"] == "finished"
    wait_for(lambda: world.job(first)["gpus"] == 4)
    world.post(f"/api/jobs/{first}/cancel")
    card = world.wait_end(first)
    assert card["state"] == "cancelled"
    assert card["rescales"] >= 3
    assert card["losses"] == 0
    assert card["preemptions"] == 0


def test_a_script_without_join_is_a_fixed_size_job(world: World) -> None:
    end = world.gate()
    job = world.run(end.shell(first="echo $CUDA_VISIBLE_DEVICES:$ONES_CONTROLLER"), gpus=3)
    wait_for(lambda: world.job(job)["gpus"] == 3)
    end.open()
    card = world.wait_end(job)
    assert (card["state"], card["elastic"]) == ("finished", False)
    assert len(world.launches(job)) == 1
    assert world.output(job) == ":\n"


def test_a_script_that_never_joins_though_it_could_is_found_out(
    make_world: Callable[..., World],
) -> None:
    world = make_world(slots=1, join_seconds=1.0)
    end, hog_ends = world.gate(), world.gate()
    hog = world.run(hog_ends.shell(), gpus=1)
    job = world.submit(1, 0, "never-join", f"end-when={end}")
    assert world.wait_state(job, "waiting")["elastic"]
    hog_ends.open()
    world.wait_end(hog)
    card = world.wait_state(job, "running")
    assert not card["elastic"]
    assert "has not called ones.join in time" in "".join(world.story(job))
    world.restart()
    assert not world.job(job)["elastic"], "it is in the log"
    end.open()
    assert world.wait_end(job)["state"] == "finished"


def test_a_script_that_joins_late_is_elastic_again(make_world: Callable[..., World]) -> None:
    world = make_world(join_seconds=1.0, policy="equi")
    join, end = world.gate(), world.gate()
    job = world.submit(8, 0.4, f"join-when={join}", f"end-when={end}")
    assert not world.wait_state(job, "running")["elastic"]
    join.open()
    wait_for(lambda: world.job(job)["elastic"] and world.job(job)["gpus"] > 1)
    end.open()
    card = world.wait_end(job)
    assert (card["state"], card["epochs"], card["failures"]) == ("finished", 8, 0)


def test_torch_is_loaded_for_joining_workers_while_others_still_leave(
    make_world: Callable[..., World],
) -> None:
    world = make_world(policy="equi", slots=2)
    leave = world.gate()
    first = world.submit(100_000, 0.5, f"leave-when={leave}")
    wait_for(lambda: world.job(first)["gpus"] == 2 and world.job(first)["state"] == "running")
    second = world.submit(1, 0.1, elastic=True)
    wait_for(lambda: list(world.dir.runs.glob(f"live/{second}/*/lock")))
    assert world.job(first)["gpus"] == 2, "no worker has left yet"
    assert not world.launches(second)
    leave.open()
    assert world.wait_end(second)["state"] == "finished"
    world.post(f"/api/jobs/{first}/cancel")


def test_a_failing_script_fails_with_its_exit_code_after_its_retries(world: World) -> None:
    job = world.submit(3, 0.1, "fail-at=2", retries=1)
    card = world.wait_end(job)
    assert card["state"] == "failed"
    assert card["message"] == (
        "Its last worker died: exit code 3. Try 2 of 2: no tries are left."
        f" Its output: ones logs {job}"
    )
    assert [p["exit_code"] for p in world.launches(job)] == [3, 3]


def test_a_program_that_is_not_there_fails_with_its_name(world: World) -> None:
    job = world.run(["/no/such/program"])
    assert "/no/such/program: no such file or directory" in world.wait_end(job)["message"]


def test_cancel_ends_workers_that_ignore_it(world: World) -> None:
    job = world.submit(1000, 1.0, "deaf")
    fixed = world.run(
        ["sh", "-c", "trap '' TERM; setsid sleep 1000 & while :; do sleep 1; done"], gpus=1
    )
    wait_for(lambda: world.job(job)["state"] != "waiting")
    wait_for(lambda: world.job(fixed)["state"] == "running")
    pids = [p["pid"] for j in (job, fixed) for p in world.launches(j)]
    for each in (job, fixed):
        assert world.post(f"/api/jobs/{each}/cancel")["state"] in ("stopping", "cancelled")
        assert world.wait_end(each)["message"].startswith("Cancelled by ")
    wait_for(lambda: not any(is_alive(pid) for pid in pids))
    live = world.dir.runs / "live"
    wait_for(lambda: not alive_below(live / job) and not alive_below(live / fixed))


def test_a_job_in_the_queue_is_cancelled_at_once_and_the_next_one_starts(world: World) -> None:
    first = world.run(["sleep", "1000"], gpus=4)
    wait_for(lambda: world.job(first)["state"] == "running")
    second, third = world.run(["sleep", "1000"]), world.run(["true"])
    assert world.job(second)["state"] == "waiting"
    assert world.post(f"/api/jobs/{second}/cancel")["state"] == "cancelled"
    world.post(f"/api/jobs/{first}/cancel")
    assert world.wait_end(third)["state"] == "finished"
    assert world.job(second)["started_at"] is None


def test_stop_rules_end_a_job(world: World) -> None:
    job = world.submit(1000, 0.1, target_accuracy=0.85)
    card = world.wait_end(job)
    assert (card["state"], card["epochs"], card["accuracy"]) == ("converged", 3, 0.875)
    other = world.submit(1000, 0.1, max_epochs=2)
    assert world.wait_end(other)["state"] == "finished"


def test_a_time_limit_is_kept(world: World) -> None:
    job = world.run(["sleep", "1000"], max_run_seconds=1.0)
    assert world.wait_end(job)["message"] == "Cancelled by its time limit of 1 s (--max-run)"


def test_all_workers_killed_means_another_try_from_the_checkpoint(world: World) -> None:
    end = world.gate()
    job = world.submit(12, 0.2, f"end-when={end}", retries=2)
    wait_for(lambda: world.job(job)["epochs"] >= 2)
    (launch,) = world.launches(job)
    os.kill(launch["pid"], signal.SIGKILL)
    end.open()
    card = world.wait_end(job)
    assert card["state"] == "finished"
    assert (card["failures"], card["losses"]) == (1, 1)
    assert card["epochs"] == 12
    again = world.http.get(f"/api/jobs/{job}/launches/{world.launches(job)[-1]['id']}/log").text
    assert "epoch 1\n" not in again


def test_ones_exec_killed_is_a_loss_and_another_try(world: World) -> None:
    end = world.gate()
    job = world.submit(12, 0.2, f"end-when={end}", retries=1)
    wait_for(lambda: world.job(job)["epochs"] >= 2)
    for lock in world.dir.runs.glob(f"live/{job}/*/lock"):
        os.kill(int(lock.read_text()), signal.SIGKILL)
    end.open()
    card = world.wait_end(job)
    assert (card["state"], card["failures"]) == ("finished", 1)
    assert any("the parent of the worker, was killed" in line for line in world.story(job))


def test_what_a_script_prints_is_kept_within_bounds(world: World) -> None:
    lines = "import sys\nfor i in range(1000): sys.stdout.write(('x' * 99 + '\\n') * 1000)"
    job = world.run([sys.executable, "-c", lines])
    world.wait_end(job)
    launch = world.launches(job)[0]["id"]
    answer = world.http.get(f"/api/jobs/{job}/launches/{launch}/log", params={"offset": 0})
    assert int(answer.headers["x-offset"]) > 0
    end = world.http.get(f"/api/jobs/{job}/launches/{launch}/log", params={"offset": -100})
    assert end.text == "x" * 99 + "\n"
    assert end.headers["x-over"] == "true"
    live, ended = (world.dir.runs / place / job for place in ("live", "ended"))
    wait_for(lambda: not live.exists(), "its output is not put away")
    assert 0 < sum(p.stat().st_size for p in ended.glob("*/*/out.*")) <= 64 << 20


def test_log_waits_for_more(world: World) -> None:
    more = world.gate()
    job = world.run(more.shell("echo two", first="echo one"))
    launch = wait_for(lambda: world.launches(job))[0]["id"]
    path = f"/api/jobs/{job}/launches/{launch}/log"
    first = world.http.get(path, params={"wait": 30})
    assert first.text == "one\n"
    with ThreadPoolExecutor(1) as thread:
        query = {"wait": "30", "offset": first.headers["x-next"]}
        second = thread.submit(world.http.get, path, params=query)
        more.open()
        assert second.result().text == "two\n"
