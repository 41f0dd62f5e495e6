"""What-if replays: their results, what each user may see, and their end with the controller."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ones.control.archive import log_since
from ones.control.store import Store
from ones.core.cluster import Cluster
from ones.core.job import EndReason, Job, JobId, SwitchCost
from ones.core.record import Outcome
from ones.core.state import State
from ones.lab.whatif import CONTROLLER_GONE, means_of, times_of, what_if
from ones.workload.recent import RecentJob
from ones.workload.trace import RecordedTraining, TraceJob
from tests.control.inside import Inside, inside
from tests.control.test_archive import HOUR, lived
from tests.control.world import World
from tests.processes import wait_for

NEVER = "import sys, threading, ones.lab.whatif as w;" \
        " w.what_if = lambda *a: threading.Event().wait(); sys.exit(w.main())"  # fmt: skip


def ended(served: Inside, headers: dict[str, str] | None = None) -> Any:  # noqa: ANN401
    def replay() -> Any:  # noqa: ANN401
        found = served.http.get("/api/whatif", headers=headers).json()
        return found if found["state"] != "running" else None

    return wait_for(replay, "the replay does not end")


def test_a_replay_reads_from_a_snapshot_on_and_has_every_job_of_the_window(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ones.db"
    store = Store(url)
    last = lived(store, days=3)
    with store.reading() as connection:
        header, _ = log_since(connection, 1.5 * 24 * HOUR)
        assert header.first > 1
        assert header.state is not None
        assert 20 <= len(header.state.ended) <= 36, "a dependency may name them"
        assert log_since(connection, 0.0)[0].first == 1
    store.close()
    progress: list[tuple[int, int]] = []
    request = {"database": url, "policy": "fifo", "since": last.at - 5 * HOUR, "until": last.at}
    found = what_if(request, lambda done, total: progress.append((done, total)))
    assert [job["job"] for job in found["jobs"]] == [f"job-{n}" for n in range(66, 72)]
    assert {job["happened"]["completion_seconds"] for job in found["jobs"][1:]} == {10.0}
    assert found["jobs"][0]["began_before"]
    for job in found["jobs"][1:]:
        assert job["whatif"]["completion_seconds"] == pytest.approx(10.0, abs=1.0)
    assert (found["policy_then"], found["policy"], found["gpus"]) == ("equi", "fifo", 4)
    assert progress[0] == (0, 12)
    assert progress[-1] == (12, 12)
    assert any("6 jobs without reports" in sentence for sentence in found["assumptions"])


def test_a_job_that_the_policy_refuses_has_no_times() -> None:
    training = RecordedTraining(
        dataset_size=1, base_batch=1, optimizer="", parameter_bytes=0, max_local_batch=None,
        step_seconds=(), milestones=(), first_loss=None, end=EndReason.FINISHED, end_message="",
        rescale_seconds=None, restart_seconds=None,
    )  # fmt: skip
    job = RecentJob(
        TraceJob(Job(id=JobId("a"), submitted_at=0.0), training), 0.0, False, 1.0, 0, ""
    )
    state = State(Cluster.of(1), SwitchCost())
    for reason, times in (
        (EndReason.REFUSED, None),
        (EndReason.FINISHED, {"completion_seconds": 5.0, "waiting_seconds": 2.0}),
    ):
        state.ended[JobId("a")] = Outcome(
            id=JobId("a"), kind="", owner="", submitted_at=0.0, ended_at=5.0, reason=reason,
            message="", queue_seconds=2.0,
        )  # fmt: skip
        assert times_of(job, state) == times


def test_means_compare_the_same_jobs() -> None:
    def times(seconds: float) -> dict[str, float]:
        return {"completion_seconds": seconds, "waiting_seconds": 0.0}

    rows: list[dict[str, Any]] = [
        {"happened": times(10), "simulated": times(11), "whatif": times(5)},
        {"happened": None, "simulated": times(31), "whatif": times(15)},
    ]
    happened, whatif = means_of(rows, "happened"), means_of(rows, "whatif")
    assert (happened["jobs"], happened["mean_completion_seconds"]) == (1, 10)
    assert happened["mean_completion_of_all"] is None
    assert (whatif["mean_completion_seconds"], whatif["mean_completion_of_all"]) == (5, 10)


def test_a_user_has_one_replay_and_sees_only_own_jobs(tmp_path: Path) -> None:
    with inside(tmp_path) as served:
        ann = served.add_user("ann")
        assert served.http.get("/api/whatif", headers=ann).status_code == 404
        mine = served.submit(headers=ann, command=["sleep", "0.2"]).json()["id"]
        served.submit(command=["sleep", "0.2"])
        wait_for(lambda: not served.service.board.live())

        def ask(**body: object) -> Any:  # noqa: ANN401
            return served.http.post("/api/whatif", json=body, headers=ann)

        assert ask(policy="srtff").status_code == 404
        assert "did you mean 'srtf'?" in ask(policy="srtff").json()["error"]
        assert ask(policy=f"{tmp_path}/mine.py").status_code == 404, "files are not for users"
        assert ask(policy="srtf", hours=0).status_code == 422
        begun = ask(policy="srtf", hours=1)
        assert (begun.status_code, begun.json()["state"]) == (202, "running")
        replay = ended(served, ann)
        assert replay["state"] == "done", replay["problem"]
        result = replay["result"]
        assert [job["job"] for job in result["jobs"]] == [mine]
        assert result["jobs_of_others"] == 1
        assert result["happened"]["jobs"] == 2
        assert served.http.get("/api/whatif").status_code == 404, "it is of the user that asked"


def test_a_replay_is_cancelled_and_ends_with_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ones.control.whatif.COMMAND", ("-c", NEVER))
    with inside(tmp_path) as served:
        ann, bob = served.add_user("ann"), served.add_user("bob")
        ask = {"policy": "fifo", "hours": 1}

        def start(headers: dict[str, str] | None) -> Any:  # noqa: ANN401
            return served.http.post("/api/whatif", json=ask, headers=headers)

        assert start(ann).status_code == 202
        again = start(ann)
        assert (again.status_code, "runs already" in again.json()["error"]) == (422, True)
        assert start(bob).status_code == 202
        assert start(None).status_code == 429, "at most two of all users"
        replay = served.service.whatif.of("ann")
        assert replay is not None
        assert replay.process is not None
        pid = replay.process.pid
        wait_for(lambda: os.getpriority(os.PRIO_PROCESS, pid) == 19)
        cancelled = served.http.post("/api/whatif/cancel", headers=ann).json()
        assert cancelled["state"] == "cancelled"
        assert replay.process.wait() == -signal.SIGKILL
        assert start(None).status_code == 202
        last = served.service.whatif.of("bob")
        assert last is not None
        assert last.process is not None
    assert last.process.wait() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("import os; os.kill(os.getpid(), 24)", "let an admin raise service.whatif_cpu_seconds"),
        ("raise KeyError('lost')", "the replay ended with code 1: KeyError: 'lost'"),
        ("print('no json')", "the replay failed: Expecting value"),
    ],
)
def test_a_replay_that_breaks_says_why_and_the_service_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, told: str
) -> None:
    monkeypatch.setattr("ones.control.whatif.COMMAND", ("-c", script))
    with inside(tmp_path) as served:
        assert served.http.post("/api/whatif", json={"policy": "fifo"}).status_code == 202
        replay = ended(served)
        assert replay["state"] == "failed"
        assert told in replay["problem"]
        assert served.http.get("/health").status_code == 200
        assert served.http.post("/api/whatif", json={"policy": "fifo"}).status_code == 202


def test_the_process_ends_when_its_controller_is_gone() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", NEVER], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert process.stdin is not None
    process.stdin.write(b'{"cpu_seconds": 60}\n')
    process.stdin.close()
    assert process.wait() == CONTROLLER_GONE


def test_no_other_process_keeps_a_replay_alive(make_world: Any) -> None:  # noqa: ANN401
    world: World = make_world()
    assert world.process is not None
    controller = world.process.pid

    def stopped() -> int | None:
        """A replay that does not go on; None: it had ended before it was stopped."""
        world.http.post("/api/whatif", json={"policy": "fifo", "hours": 1})
        for pid in children(controller, "ones.lab.whatif"):
            os.kill(pid, signal.SIGSTOP)
            return pid
        return None

    replay = wait_for(stopped)
    assert replay is not None
    try:
        world.wait_state(world.run(["sleep", "1000"], gpus=1), "running")
        pipe = os.readlink(f"/proc/{replay}/fd/0")
        assert holders(pipe) == {replay, controller}, "a job's processes have none of it"
        world.kill()
    finally:
        os.kill(replay, signal.SIGCONT)
    wait_for(
        lambda: not Path(f"/proc/{replay}/fd/0").exists(), "the replay outlives its controller"
    )
    world.up()


def children(parent: int, word: str) -> list[int]:
    found = Path(f"/proc/{parent}/task").glob("*/children")
    pids = {int(pid) for path in found for pid in path.read_text().split()}
    return [pid for pid in pids if word in Path(f"/proc/{pid}/cmdline").read_text()]


def holders(pipe: str) -> set[int]:
    """Processes with an open end of a pipe."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(path) == pipe:
                found.add(int(path.parts[2]))
        except OSError:
            continue  # it has ended
    return found
