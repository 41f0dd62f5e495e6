"""The controller's log: events with fields, one line each, rotated, without secrets."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from ones.config import ServiceSettings
from ones.control import logs, service_process
from ones.control.schema import submissions
from ones.control.statedir import StateDir
from ones.control.store import Store, Waiting, insert
from ones.errors import UnknownNameError, UserError
from tests.control.world import World
from tests.processes import wait_for


@pytest.fixture
def lines() -> Iterator[Callable[[str], list[str]]]:
    """What a format makes of the events that are logged meanwhile."""
    records: list[logging.LogRecord] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    ours = logging.getLogger("ones")
    handler, before = Handler(), ours.level
    ours.addHandler(handler)
    ours.setLevel(logging.DEBUG)
    formats = {"json": logs.JsonFormatter(), "text": logs.TextFormatter()}
    yield lambda name: [formats[name].format(record) for record in records]
    ours.removeHandler(handler)
    ours.setLevel(before)


def test_an_event_has_fields_in_both_formats(lines: Callable[[str], list[str]]) -> None:
    logs.logger("ones.x").info("job submitted", job="a-1", owner="ann", gpus=2, name="taken")
    (told,) = map(json.loads, lines("json"))
    assert told.pop("at").endswith("Z")
    assert told == {
        "level": "info", "logger": "ones.x", "event": "job submitted", "job": "a-1",
        "owner": "ann", "gpus": 2, "name_": "taken",
    }  # fmt: skip
    (text,) = lines("text")
    assert text.endswith("Z info job submitted job=a-1 owner=ann gpus=2 name_=taken")


def test_stdlib_loggers_and_their_fields_go_the_same_way(
    lines: Callable[[str], list[str]],
) -> None:
    logging.getLogger("ones.launchers").warning("100%% of %s", "it", extra={"node": "n 0"})
    (told,) = map(json.loads, lines("json"))
    assert (told["event"], told["node"], told["level"]) == ("100% of it", "n 0", "warning")
    assert lines("text")[0].endswith(' warning 100% of it node="n 0"')


@pytest.mark.parametrize(
    "value",
    ["a\nb error=x", "\x1b[31m", "\ud800", "é", 'say "x"', "a=b", "", "x" * 100_000],
)
def test_no_value_can_forge_a_line(value: str, lines: Callable[[str], list[str]]) -> None:
    logs.logger("ones.x").warning("node lost", node=value)
    (text,) = lines("text")
    assert text.isascii()
    assert text.isprintable()
    assert len(text) < 5000
    (line,) = lines("json")
    assert json.loads(line)["node"] == value
    assert "\n" not in line


def test_an_exception_is_one_event(lines: Callable[[str], list[str]]) -> None:
    secret = "do not" + " show me"
    try:
        int(f"bad\n{len(secret)}")
    except ValueError:
        logs.logger("ones.x").exception("turn failed", job="a-1", odd=float("nan"), more=[{1}])
    (line,) = lines("json")
    told = json.loads(line, parse_constant=pytest.fail)
    assert told["exception"].startswith("Traceback (most recent call last)")
    assert told["exception"].endswith(r"with base 10: 'bad\n14'")
    assert (told["odd"], told["more"], told["level"]) == ("nan", ["{1}"], "error")
    assert secret not in line, "no local variables"
    assert "Traceback" in lines("text")[0]


def test_secrets_are_hidden_by_their_names(lines: Callable[[str], list[str]]) -> None:
    logs.logger("ones.x").error("oops", token="hush", env={"A": "hush"}, authorization="hush")
    logging.getLogger("ones.y").error("oops", extra={"token": "hush"})
    assert len(lines("text")) == 2
    for line in (*lines("text"), *lines("json")):
        assert "hush" not in line
        assert "(hidden)" in line


def test_unknown_formats_and_levels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="unknown log_format 'xml'; known: json, text"):
        logs.check("xml", "info")
    with pytest.raises(UnknownNameError, match="unknown log_level 'inf'; did you mean 'info'"):
        logs.check("text", "inf")


# rotation

ROTATING = """
import os, sys
from pathlib import Path
from ones.control import logs
path = Path(sys.argv[1])
logs.FILE_BYTES, logs.OLDER_FILES = 2000, 3
handler = logs.LogFile(path, 2000, 3)
import logging
log = logging.getLogger("ones")
handler.setFormatter(logs.TextFormatter())
log.addHandler(handler)
for number in range(100):
    log.warning("event", extra={"number": number})
    print("printed", number, flush=True)
    os.write(2, b"written %d\\n" % number)
"""


def test_rotation_takes_what_the_process_prints_along(tmp_path: Path) -> None:
    path = tmp_path / "controller.log"
    with path.open("ab") as file:
        subprocess.run(
            [sys.executable, "-c", ROTATING, str(path)], stdout=file, stderr=file, check=True
        )
    files = [path.with_name(f"controller.log.{n}") for n in (3, 2, 1)] + [path]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    assert all(found.stat().st_size <= 2100 for found in files)
    text = "".join(found.read_text() for found in files).splitlines()
    kinds = {
        word: [
            int(line.split("=" if word == "event" else " ")[-1]) for line in text if word in line
        ]
        for word in ("event", "printed", "written")
    }
    for word, numbers in kinds.items():
        assert numbers == list(range(numbers[0], 100)), f"{word}: none is lost from the kept files"
        assert len(numbers) > 30
    assert path.stat().st_mode & 0o777 == 0o600


# the service


def events(world: World) -> list[dict[str, Any]]:
    return [json.loads(line) for line in world.log().splitlines()]


def test_the_service_tells_what_happens_and_no_secret(make_world: Callable[..., World]) -> None:
    world = make_world(log_format="json", log_level="debug", slots=2)
    secret = "hidden-in-the-environment"
    env = {"PATH": os.environ["PATH"], "PASSWORD": secret}
    good = world.run(["sh", "-c", "exit 0"], gpus=1, env=env)
    bad = world.run(["sh", "-c", "exit 5"], gpus=1, env=env)
    missing = world.run(["/no/such/program"], gpus=1, env=env)
    elastic = world.submit(2, 0.05, env=env)
    for job in (good, bad, missing, elastic):
        world.wait_end(job)
    token = world.dir.read_token() or ""
    for body in (b"[" * 50_000, b"{}"):
        answer = world.http.post(
            "/worker/reports", content=body, headers={"Authorization": f"Bearer {token}"}
        )
        assert answer.status_code >= 400
    (launch,) = world.launches(elastic)
    spec = next(world.dir.runs.glob(f"*/{elastic}/*/{launch['id']}/spec.json"))
    of_job = json.loads(spec.read_text())["env"]["ONES_TOKEN"]
    wait_for(lambda: any(e["event"] == "report refused" for e in events(world)))
    world.stop()
    found = events(world)
    names = [event["event"] for event in found]
    assert names[0] == "service started"
    assert names[-2:] == ["service stopping", "service stopped"]
    assert found[-2]["signal"] == "SIGTERM"
    by_job = {job: [e["event"] for e in found if e.get("job") == job] for job in (good, bad)}
    assert by_job[good] == ["job submitted", "job ended"]
    assert by_job[bad] == ["job submitted", "worker lost", "job ended"]
    assert [e for e in found if e["event"] == "launch failed" and e["job"] == missing]
    (lost,) = [e for e in found if e["event"] == "worker lost" and e["job"] == bad]
    assert (lost["level"], lost["node"], lost["reason"]) == ("warning", "local", "exit code 5")
    assert [e["start"] for e in found if e["event"] == "plan adopted" and "start" in e]
    log = world.log()
    for hidden in (secret, token, of_job, "Bearer"):
        assert hidden
        assert hidden not in log


class FullDisk(Store):
    """Refuses writes until there is room."""

    refusals = 0
    is_full = True

    def _transact(self, batch: Any) -> None:  # noqa: ANN401
        if self.is_full:
            self.refusals += 1
            raise sa.exc.OperationalError("INSERT", {"env": "hush"}, Exception("disk is full"))
        super()._transact(batch)


def test_a_full_disk_is_told_once_and_its_end(
    tmp_path: Path, lines: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ones.control.store.RETRY_SECONDS", 0.001)
    store = FullDisk(f"sqlite:///{tmp_path}/ones.db")
    safe = Waiting()
    store.write(done=safe)
    wait_for(lambda: store.refusals > 5)
    store.is_full = False
    safe.wait(30)
    store.close()
    told = [json.loads(line) for line in lines("json")]
    assert [event["event"] for event in told] == ["writer waits for the database", "writer goes on"]
    assert told[0]["error"] == "disk is full"


def test_no_database_error_shows_what_was_to_be_written(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/ones.db")
    row = {"job": "a", "owner": "ann", "submitted_at": 0.0, "body": "hush"}
    with pytest.raises(sa.exc.IntegrityError) as caught:
        store.write_now(insert(submissions, row), insert(submissions, row))
    store.close()
    assert "hush" not in str(caught.value)


def test_a_start_that_fails_says_why_whatever_the_format(tmp_path: Path) -> None:
    for log_format in ("text", "json"):
        state = tmp_path / log_format
        settings = ServiceSettings(
            state=str(state), slots=1, port=0, log_format=log_format, mechanism="fly"
        )
        StateDir(state).make()
        StateDir(state).log.write_text("2026-01-01T00:00:00Z error service failed error=old\n")
        with pytest.raises(UserError, match="did not start: unknown mechanism 'fly'; known:"):
            service_process.start(settings, {})


def test_in_the_foreground_logs_go_to_stderr_and_results_to_stdout(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [Path(sys.executable).with_name("ones"), "up", "--slots", "1", "--port", "0", "--policy",
         "fifo", "--foreground", "--log-format", "json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        env={**os.environ, "ONES_SERVICE_STATE": str(tmp_path / "state")},
    )  # fmt: skip
    assert process.stdout is not None
    assert "ONES is up: http://127.0.0.1:" in process.stdout.readline()
    address = wait_for(lambda: StateDir(tmp_path / "state").address())
    assert address is not None
    assert httpx.get(f"{address.url}/health", timeout=60).status_code == 200
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    found = [json.loads(line)["event"] for line in err.splitlines() if line.startswith("{")]
    assert found == ["service started", "service stopping", "service stopped"]
    assert "service started" not in out
    assert not (tmp_path / "state" / "controller.log").exists()


def test_no_bare_print_is_left() -> None:
    """What a process has to say is logged; results of commands and benches are printed."""
    import ast

    import ones

    root = Path(ones.__file__).parent
    allowed = {
        "exec/__main__.py": 3,  # usage, and the word to its starter
        "exec/launchd.py": 2,  # its log, and its usage
        "exec/snapshot.py": 2,  # why a job cannot start, into its output
        "train/acceptance/facts.py": 1,  # a result
        "train/elastic_job.py": 1,  # job.log
        "train/zygote.py": 1,  # as the interpreter does it
        "train/logs.py": 1,
        "lab/bench/emulation/launcher.py": 1,
        "lab/bench/emulation/service.py": 1,
        "lab/whatif.py": 1,  # its result, to the service
    }
    found: dict[str, int] = {}
    for path in sorted(root.rglob("*.py")):
        name = str(path.relative_to(root))
        if name.startswith("cli/"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print":
                found[name] = found.get(name, 0) + 1
    assert found == allowed
