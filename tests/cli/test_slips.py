"""What people type wrong, or too early, against a real service: one line that helps."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from rich.console import Console

from ones.cli.client import Client, of_job
from ones.cli.joblist import job_table
from ones.cli.logs import _Lines
from ones.cli.scripts import lacks_ones, look_at
from ones.errors import UserError
from tests.cli.test_commands import Ones, Result, ones
from tests.control.world import World

__all__ = ["ones"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("world"), slots=1)
    world.up()
    yield world
    world.down()


@pytest.fixture(autouse=True)
def _closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A command leaves its connection to the end of its process, which is not here."""
    made: list[Client] = []

    def remember(self: Client, *words: str) -> None:
        begin(self, *words)
        made.append(self)

    begin = Client.__init__
    monkeypatch.setattr(Client, "__init__", remember)
    yield
    for client in made:
        client.close()


@pytest.fixture
def here(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """The service of this test, whatever is set outside."""
    for variable in [name for name in os.environ if name.startswith("ONES_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("ONES_SERVICE_STATE", str(world.dir.path))
    monkeypatch.chdir(tmp_path)
    return world


def test_without_jobs_it_says_how_to_queue_one(here: World, ones: Ones) -> None:
    found = ones("ps")
    assert (found.code, found.out) == (0, "")
    assert found.err.startswith("no jobs; those that have ended: ones ps --all; queue one: ")
    assert ones("ps", "--json").json == []


def test_output_that_is_not_there_yet_is_explained(here: World, ones: Ones) -> None:
    hog = here.run(["sleep", "1000"], gpus=1, name="hog")
    here.wait_state(hog, "running")
    late = here.run(["true"], gpus=1, name="late")
    assert ones("logs", hog) == Result(0, "", f"{hog} has printed nothing\n")
    found = ones("logs", late)
    assert (found.code, found.out) == (0, "")
    assert found.err.startswith(f"{late} has not started: waiting")
    assert ones("logs", hog, "--tail", "0") == Result(2, "", "ones: --tail: 0 is not at least 1\n")

    cancelled = ones("cancel", late, "no-such-job", hog)
    assert cancelled.code == 2
    assert f"{late}: " in cancelled.out
    assert f"{hog}: " in cancelled.out
    assert cancelled.err.startswith("ones: unknown job 'no-such-job'; ")
    for job in (hog, late):
        assert here.wait_end(job)["state"] == "cancelled"
    assert ones("logs", late).err.startswith(f"{late} has not started: cancelled")


@pytest.mark.parametrize("job", ["", ".", "..", "../cluster", "a/b"])
def test_what_cannot_be_a_job_leads_nowhere_else(here: World, ones: Ones, job: str) -> None:
    for command in ("show", "why", "logs", "cancel"):
        expected = f"ones: unknown job {job!r}; list all jobs with: ones ps --all\n"
        assert ones(command, job) == Result(2, "", expected)


def test_odd_ids_are_asked_for_as_they_are(here: World, ones: Ones) -> None:
    assert of_job("50%? #1", "log") == "/api/jobs/50%25%3F%20%231/log"
    found = ones("show", "50%? #1")
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith("ones: unknown job '50%? #1'; ")


BAD_FILES = {
    "command = 'python train.py'": "command: 'python train.py' is not a list of strings such as ",
    "command = ['sleep', 1]": "command: ['sleep', 1] is not a list of strings such as ",
    "command = ['true']\nenv = 'A=1'": "env: 'A=1' is not a table of strings such as ",
    "command = ['true']\nenv = { A = 1 }": "env: {'A': 1} is not a table of strings such as ",
    "command = ['true']\ncwd = 3": "cwd: 3 is not the name of a directory",
    "command = ": "is not TOML: ",
}


@pytest.mark.parametrize("text", BAD_FILES)
def test_a_wrong_file_of_options_is_named_with_the_field(
    here: World, ones: Ones, tmp_path: Path, text: str
) -> None:
    (tmp_path / "job.toml").write_text(text)
    found = ones("submit", "--file", "job.toml")
    assert (found.code, found.out, found.err.count("\n")) == (2, "", 1)
    assert found.err.startswith(f"ones: job.toml: {BAD_FILES[text]}")


BAD_OPTIONS = {
    "--priority nan -- true": "priority: nan is not a finite number",
    "--target-accuracy inf -- true": "target_accuracy: inf is not a finite number",
    "--cwd /no/such/place -- true": "cwd: /no/such/place: no such directory",
    "--gpus 0 -- true": "gpus: Input should be greater than or equal to 1 (got 0)",
    "--gpus 2 -- true": "job new: gpus 2 is more than the cluster has, 1",
    "-- no-such-program": "no-such-program: no such program",
}


@pytest.mark.parametrize("words", BAD_OPTIONS)
def test_a_job_that_cannot_be_is_refused_in_one_line(here: World, ones: Ones, words: str) -> None:
    assert ones("submit", *words.split()) == Result(2, "", f"ones: {BAD_OPTIONS[words]}\n")


def test_what_is_not_text_in_the_environment_is_left_out(
    here: World, ones: Ones, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ODD", os.fsdecode(b"\xff"))
    monkeypatch.setenv("PLAIN", "å")
    found = ones("submit", "--gpus", "1", "--", "true")
    told = "variable 'ODD' is not passed to the job: it is not valid UTF-8"
    assert (found.code, found.err.splitlines()[0]) == (0, told)
    env = here.job(found.out.strip())["env"]
    assert ("ODD" in env, env["PLAIN"]) == (False, "å")


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_a_list_of_jobs_fits_the_terminal_and_says_why(width: int) -> None:
    waits = {
        "id": "plain-digits-12", "owner": "ann", "state": "waiting", "elastic": False, "gpus": 0,
        "batch": None, "epochs": 0, "loss": None, "accuracy": None, "submitted_at": 0.0,
        "ended_at": None, "eta": None, "message": "", "note": "others come first, it is said",
    }  # fmt: skip
    runs = {
        **waits, "id": "train-7", "state": "running", "elastic": True, "gpus": 2, "batch": 4096,
        "epochs": 7, "loss": 0.5, "accuracy": 0.25, "eta": 7400.0, "eta_low": 60.0,
        "eta_high": 9000.0, "note": "alone",
    }  # fmt: skip
    told = io.StringIO()
    Console(width=width, file=told).print(job_table([waits, runs], width, now=3700.0))
    lines = told.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    [first] = [line for line in lines if "plain-digits-12" in line]
    assert "waiting (fixed)" in first
    assert "others come" in first
    [second] = [line for line in lines if "train-7" in line]
    assert ("0.250" in second) is (width >= 80)
    assert ("ann" in second) is (width == 160)
    assert len(lines) == 4, "no cell is broken"
    Console(width=width, file=told).print(job_table([], width, now=0.0))  # no job


def test_leaving_a_job_that_is_followed_is_one_line(
    here: World, ones: Ones, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*words: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ones.cli.submit.follow_job", interrupted)
    found = ones("submit", "--follow", "--gpus", "1", "--", "sleep", "1000")
    job = found.out.strip()
    told = f"detached; {job} continues. Output: ones logs -f {job}; stop it: ones cancel {job}"
    assert (found.code, found.err.splitlines()[-1]) == (130, f"ones: {told}")
    here.wait_state(job, "running")
    assert "  now: running, 1 GPU" in ones("why", job).out
    assert "1 job runs, 0 wait; policy fifo" in ones("cluster").out
    here.post(f"/api/jobs/{job}/cancel")
    here.wait_end(job)


def test_of_a_job_that_failed_it_says_where_to_look(here: World, ones: Ones) -> None:
    job = here.run(["false"], gpus=1)
    here.wait_end(job)
    found = ones("show", job)
    assert (found.code, found.err) == (0, f"what it printed: ones logs {job}\n")


def test_the_script_is_found_behind_options_of_python(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import ones\nones.join\n")
    for options in (["-u"], ["-W", "ignore"], ["-X", "dev", "-uB"], ["-Wignore", "-Xdev"]):
        script = look_at([sys.executable, *options, "train.py", "-m"], tmp_path, {})
        assert (script.name, script.elastic) == ("train.py", True), options
    for options in (["-u", "-m", "train"], ["-um", "train"], ["-B", "-c", "pass"], ["-"], []):
        assert look_at([sys.executable, *options], tmp_path, {}).elastic is None, options
    with pytest.raises(UserError, match=r"gone\.py: no such file or directory"):
        look_at([sys.executable, "-W", "ignore", "gone.py"], tmp_path, {})


def test_a_loop_of_another_library_is_elastic_by_its_integration(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    for line, elastic in (
        ("from ones.integrations.transformers import elastic", True),
        ("from ones.integrations import lightning", True),
        ("from ones.integrations.trackers import MLflow", False),
    ):
        script.write_text(f"{line}\n")
        assert look_at([sys.executable, "train.py"], tmp_path, {}).elastic is elastic, line


def test_another_python_without_ones_is_noticed(tmp_path: Path) -> None:
    assert not lacks_ones(sys.executable, tmp_path, {})
    for code in (0, 3):
        python = tmp_path / f"python{code}"
        python.write_text(f"#!/bin/sh\nexit {code}\n")
        python.chmod(0o755)
        assert lacks_ones(str(python), tmp_path, {}) is (code == 3)
    assert not lacks_ones(str(tmp_path / "nowhere"), tmp_path, {})


@contextmanager
def another_service() -> Iterator[str]:
    """A web server that is not ours."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(404 if "jobs" in self.path else 200)
            self.end_headers()
            self.wfile.write(b"<html>\n<p>Not here</p>\n</html>")

        def log_message(self, *words: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_an_address_that_is_not_ours_is_said_in_one_line(
    ones: Ones, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONES_API_TOKEN", "x")
    with another_service() as url:
        monkeypatch.setenv("ONES_URL", url)
        told = f"ones: {url}: another program answers at this address"
        assert ones("ps") == Result(1, "", f"{told} (404 Not Found)\n")
        assert ones("cluster") == Result(1, "", f"{told} (200 OK)\n")
    monkeypatch.setenv("ONES_URL", "http://host:port")
    found = ones("ps")
    assert (found.code, found.err.count("\n")) == (2, 1)
    assert found.err.startswith("ones: http://host:port: is not a valid address of a service: ")


def test_lines_of_several_processes_stay_whole(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    lines = _Lines()
    lines.write("a", b"[a] ", b"one\ntw")
    lines.write("b", b"[b] ", b"eins\n")
    lines.write("a", b"[a] ", b"o\nend")
    lines.end("a")
    lines.end("b")
    assert capfdbinary.readouterr().out == b"[a] one\n[b] eins\n[a] two\n[a] end\n"
