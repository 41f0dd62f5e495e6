"""Traces played to the real service, and its log read as a workload."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ones.apps.trace_player import paper_recipes, read_recipes, schedule_of
from ones.apps.trace_player import play as play_schedule
from ones.core import Cluster
from ones.errors import UserError
from ones.policies import create
from ones.runlog import RunLog
from ones.sim import Simulator
from ones.workload import RecordedTraining, generate_artifact, paper_numbers, read_trace
from ones.workload.recorded import read_recording
from tests.control.world import PACED, World
from tests.processes import PATIENCE

ONES = str(Path(sys.executable).with_name("ones"))
TRACE = """event,at,id,model,gpus,epochs,base_batch,dataset_size
submit,0,one,bert-mrpc,1,4,32,3600
submit,10,two,bert-cola,1,40,64,5000
node-down,15,,,,,,
cancel,20,two,,,,,
submit,30,three,bert-mrpc,2,3,32,3600
"""
#: runs a script indirectly, so that it is not detected as elastic: it does not call ones.join
RUN = "import runpy, sys; sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__')"
RECIPES = f"""
[kinds.bert-mrpc]
command = ["{sys.executable}", "-c", "{RUN}", "{PACED}", "{{epochs}}", "0.2"]

[kinds.default]
command = ["{sys.executable}", "-c", "{RUN}", "{PACED}", "{{epochs}}", "500"]
env = {{ KIND = "rest" }}
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    trace, recipes = tmp_path / "trace.csv", tmp_path / "kinds.toml"
    trace.write_text(TRACE.replace("node-down,15,,,,,,\n", ""))
    recipes.write_text(RECIPES)
    return trace, recipes


def play(world: World, *words: object) -> subprocess.CompletedProcess[str]:
    command = [ONES, "trace", "play", "--state", str(world.dir.path), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_jobs_come_at_their_times_and_are_cancelled(
    world: World, files: tuple[Path, Path], tmp_path: Path
) -> None:
    trace, recipes = files
    done = play(world, trace, "--commands", recipes, "--speed", 10, "--wait", "--json")
    told = json.loads(done.stdout)
    late = {job["job"]: job["late_seconds"] for job in told["jobs"]}
    cards = {job["job"]: world.job(job["id"]) for job in told["jobs"]}
    states = {name: card["state"] for name, card in cards.items()}
    assert states == {"one": "finished", "two": "cancelled", "three": "finished"}
    assert done.returncode == 1, "one of them did not end well"
    gap = cards["three"]["submitted_at"] - cards["one"]["submitted_at"]
    assert 3.0 - late["one"] - 0.01 <= gap <= 3.0 + late["three"] + 0.01, "30 s, at speed 10"
    assert cards["one"]["kind"] == "bert-mrpc"
    assert cards["two"]["env"]["KIND"] == "rest"
    assert cards["three"]["name"] == "three"
    # and the log of all this is a workload: what would another policy have done?
    log = tmp_path / "run.jsonl"
    words = ["trace", "record", "--state", str(world.dir.path), "--out", str(log), "--json"]
    asked = subprocess.run(
        [ONES, *words], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert json.loads(asked.stdout)["entries"] > 20
    read, left_out = read_recording(RunLog(log))
    assert {entry.job.id for entry in read.jobs} >= {cards["one"]["id"], cards["three"]["id"]}
    assert left_out >= 1, "the cancelled one never finished an epoch"
    first = min(entry.job.submitted_at for entry in read.jobs)
    assert 0.0 <= first < 600.0, "counted from the begin of the log"
    again = Simulator(read, Cluster.of(4, 4), create("fifo")).run()
    assert len(again.state.ended) == len(read.jobs)
    simulated = again.state.ended[cards["one"]["id"]]
    # 4 epochs of 10 steps of 0.02 s, and the time that its process took to start
    training = next(e for e in read.jobs if e.job.id == cards["one"]["id"]).training
    assert isinstance(training, RecordedTraining)
    assert training.start_seconds is not None
    assert simulated.run_seconds == pytest.approx(0.8 + training.start_seconds, abs=0.5)


class Hours:
    """A clock that advances only during `sleep`."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Told:
    """A service that takes two seconds for each request, and notes when it came."""

    def __init__(self, clock: Hours) -> None:
        self.clock = clock
        self.requests: list[tuple[float, str]] = []

    def get(self, path: str, **query: Any) -> Any:  # noqa: ANN401
        raise AssertionError(path)

    def post(self, path: str, body: Any = None) -> Any:  # noqa: ANN401
        self.requests.append((self.clock.now, path))
        self.clock.sleep(2.0)
        return {"id": f"{body['name']}-1"} if body else {}


def test_each_is_submitted_when_its_time_has_come(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, recipes = files
    clock = Hours()
    monkeypatch.setattr("ones.apps.trace_player.time", clock)
    service = Told(clock)
    schedule = schedule_of(read_trace(trace), read_recipes(recipes))
    played = play_schedule(
        service, schedule, lambda recipe: (list(recipe.command), True), env={}, speed=2
    )
    assert service.requests == [
        (0.0, "/api/jobs"),
        (5.0, "/api/jobs"),
        (10.0, "/api/jobs/two-1/cancel"),
        (15.0, "/api/jobs"),
    ]
    assert [job.late_seconds for job in played] == [2.0, 2.0, 2.0]


def test_without_wait_it_leaves_once_all_are_submitted(
    world: World, files: tuple[Path, Path]
) -> None:
    trace, recipes = files
    done = play(world, trace, "--commands", recipes, "--speed", 1000, "--jobs", 1)
    assert done.returncode == 0, done.stderr
    id = done.stdout.split()[-1]
    assert world.wait_end(id)["state"] == "finished"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no section [kinds.NAME]"),
        ("[kind.x]", "unknown section 'kind'"),
        ("[kinds.x]\ncommand = 'python'", "kinds.x.command: 'python' is not a list of strings"),
        ("[kinds.x]\ncommand = ['a']\nuser = 'b'", "unknown setting 'user'"),
        ("[kinds.x]\ncommand = ['a']", "unknown kind of job one 'bert-mrpc'"),
        ("[kinds.default]\ncommand = ['a', '{gpu}']", "'gpu'; did you mean 'gpus'?"),
        ("[kinds.default]\ncommand = ['a', '{']", "'{'"),
        ("[kinds", "is not TOML"),
    ],
)
def test_recipes_that_are_wrong_are_refused(
    files: tuple[Path, Path], text: str, problem: str
) -> None:
    trace, recipes = files
    recipes.write_text(text)
    with pytest.raises(UserError) as refused:
        schedule_of(read_trace(trace), read_recipes(recipes))
    assert problem in str(refused.value)


def test_a_command_that_cannot_run_is_found_before_anything_is_submitted(
    world: World, files: tuple[Path, Path]
) -> None:
    trace, recipes = files
    recipes.write_text('[kinds.default]\ncommand = ["python3", "not-there.py"]')
    before = len(world.get("/api/jobs", all="true"))
    done = play(world, trace, "--commands", recipes, "--speed", 1000)
    assert done.returncode == 2
    assert "not-there.py" in done.stderr
    assert len(world.get("/api/jobs", all="true")) == before


def test_failures_of_nodes_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("event,at,id,model,node\nsubmit,0,a,bert-mrpc,\nnode-down,5,,,node0\n")
    schedule = schedule_of(read_trace(path), paper_recipes())
    assert (len(schedule.actions), schedule.left_out) == (1, 1)


def test_every_kind_of_the_paper_has_a_script() -> None:
    recipes = paper_recipes()
    assert set(recipes) == set(paper_numbers().kinds)
    for recipe in recipes.values():
        assert Path(recipe.command[1]).is_file()


def test_the_paper_s_scripts_are_known_to_be_elastic() -> None:
    from ones.cli.scripts import look_at

    for recipe in paper_recipes().values():
        script: Any = look_at(list(recipe.command), Path(recipe.cwd), {})
        assert script.elastic is True, recipe


def test_a_joint_stop_rule_cannot_be_played() -> None:
    """The service would end the job by another rule."""
    with pytest.raises(UserError, match="job j0: the service has no joint stop rule"):
        schedule_of(generate_artifact(jobs=1, seed=1), paper_recipes())
