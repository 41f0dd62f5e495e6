"""The `ones` command as its users meet it: what it prints, what it keeps, how it fails.

Most commands are run inside this process, through `main`; a process of its own is started
only where signals, pipes or imports matter.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ones import __version__
from ones.cli import main
from ones.runlog import RunLog
from tests.processes import PATIENCE

PROMISED = {
    "policy", "workload", "gpus", "jobs", "seed", "mechanism", "mean_jct", "median_jct", "p95_jct",
    "p99_jct", "mean_exec", "mean_queue", "makespan", "utilization", "rescales", "rescale_rate",
    "preemptions", "finished", "wall_seconds", "policy_cpu_seconds", "events",
}  # fmt: skip
SMALL = ("--gpus", "16", "--jobs", "8", "--seed", "3")
FIFO = ("sim", "--policy", "fifo", *SMALL)


@dataclass(frozen=True, slots=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:  # noqa: ANN401
        return json.loads(self.out)


Ones = Callable[..., Result]


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty directory, without the settings of the user that runs the tests."""
    monkeypatch.chdir(tmp_path)
    for variable in [name for name in os.environ if name.startswith("ONES_")]:
        monkeypatch.delenv(variable)


@pytest.fixture
def ones(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ones:
    def run(*arguments: str | Path) -> Result:
        monkeypatch.setattr(sys, "argv", ["ones", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        code = left.value.code
        assert isinstance(code, int)
        return Result(code, *capsys.readouterr())

    return run


def start(*arguments: str | Path, **options: Any) -> subprocess.Popen[str]:
    """The real command, in a process of its own."""
    command = [Path(sys.executable).with_name("ones"), *arguments]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **{**pipes, **options})


def run_alone(*arguments: str | Path, **options: Any) -> Result:
    with start(*arguments, **options) as process:
        out, err = process.communicate(timeout=PATIENCE)
    return Result(process.returncode, out, err)


# looking around


def test_the_real_command_says_its_version() -> None:
    assert run_alone("--version") == Result(0, f"ones {__version__}\n", "")


def test_it_runs_as_a_module() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "ones", "--version"],
        capture_output=True, text=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    assert found.stdout == f"ones {__version__}\n"


def test_help_lists_every_command(ones: Ones) -> None:
    found = ones("--help")
    assert found.code == 0
    assert found.err == ""
    for command in ("demo", "sim", "replay", "trace", "bench", "config"):
        assert f" {command} " in found.out


@pytest.mark.parametrize(
    "command", ["demo", "sim", "replay", "trace generate", "trace inspect", "bench sim", "config"]
)
def test_every_command_has_help(ones: Ones, command: str) -> None:
    found = ones(*command.split(), "--help")
    assert found.code == 0
    assert f"Usage: ones {command}" in found.out


@pytest.mark.parametrize("command", ["", "trace", "bench"])
def test_a_group_without_a_command_shows_its_help(ones: Ones, command: str) -> None:
    found = ones(*command.split())
    assert found.code == 2
    assert f"Usage: ones {command}" in found.out
    assert found.err == ""


def test_config_shows_every_setting_with_its_origin(
    ones: Ones, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ones.toml").write_text("[sim]\njobs = 9\n[policy.fifo]\nbackfill = true\n")
    monkeypatch.setenv("ONES_SIM_GPUS", "8")
    found = ones("config", "--json").json
    assert found["settings"]["sim.jobs"] == {"value": 9, "origin": "ones.toml"}
    assert found["settings"]["sim.gpus"] == {"value": 8, "origin": "ONES_SIM_GPUS"}
    assert found["settings"]["sim.seed"] == {"value": 0, "origin": "default"}
    assert found["policies"]["fifo"]["backfill"] == {"value": True, "origin": "ones.toml"}
    table = ones("config").out
    for word in ("sim.jobs", "ONES_SIM_GPUS", "policy.fifo.backfill", "policies: "):
        assert word in table


# one run


def test_sim_prints_the_promised_fields_and_finishes_every_job(ones: Ones) -> None:
    found = ones("sim", "--policy", "equi", "--gpus", "64", "--jobs", "50", "--seed", "1", "--json")
    assert (found.code, found.err) == (0, "")
    row = found.json
    assert set(row) >= PROMISED
    assert row["finished"] == row["jobs"] == 50
    assert (row["policy"], row["gpus"], row["seed"], row["workload"]) == ("equi", 64, 1, "paper")
    assert row["mean_jct"] == pytest.approx(row["mean_exec"] + row["mean_queue"], abs=1e-6)
    assert 0 < row["utilization"] <= 1


def test_sim_shows_a_table_to_people(ones: Ones) -> None:
    found = ones(*FIFO)
    assert (found.code, found.err) == (0, "")
    assert "paper seed 3: 8 jobs on 16 GPUs under fifo" in found.out


def test_what_a_solver_prints_is_no_result(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from scipy.optimize import milp

    def noisy(*words: Any, **more: Any) -> Any:  # noqa: ANN401
        os.write(1, b"from a solver\n")
        print("from a policy")
        return milp(*words, **more)

    monkeypatch.setattr("ones.policies.sia.milp", noisy)
    for words in (["sim", "--policy", "sia", *SMALL, "--out", "run"], ["replay", "run/run.jsonl"]):
        monkeypatch.setattr(sys, "argv", ["ones", *words, "--json"])
        with pytest.raises(SystemExit):
            main()
        out, err = capfd.readouterr()
        assert json.loads(out)["policy"] == "sia"
        assert "from a solver" not in err
        assert "from a policy" in err


@pytest.mark.parametrize("policy", ["fifo", "equi"])
def test_the_same_command_twice_gives_the_same_run_log(tmp_path: Path, policy: str) -> None:
    """In two processes that order their sets and dictionaries differently."""
    for name in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": name}
        found = run_alone(
            "sim", "--policy", policy, *SMALL, "--out", name, cwd=tmp_path, env=environment
        )
        assert found.code == 0, found.err
    logs = [(tmp_path / name / "run.jsonl").read_bytes() for name in ("1", "2")]
    assert logs[0] == logs[1]
    assert logs[0].count(b"\n") > 100


def test_sim_keeps_log_result_and_picture_and_replay_says_same(ones: Ones, tmp_path: Path) -> None:
    found = ones(*FIFO, "--json", "--out", "deep/down")
    home = tmp_path / "deep" / "down"
    assert found.code == 0
    assert found.err == "kept in deep/down: run.jsonl, result.json, schedule.png\n"
    assert {path.name for path in home.iterdir()} == {"run.jsonl", "result.json", "schedule.png"}
    assert json.loads((home / "result.json").read_text()) == found.json
    assert (home / "schedule.png").read_bytes().startswith(b"\x89PNG")

    again = ones("replay", home / "run.jsonl")
    assert (again.code, again.err) == (0, "")
    assert again.out.startswith("same: ")
    told = ones("replay", home / "run.jsonl", "--json").json
    assert told["same"] is True
    assert told["events"] == found.json["events"]
    assert told["cut_off"] is False


def test_an_earlier_run_is_not_overwritten_unless_asked(ones: Ones, tmp_path: Path) -> None:
    assert ones(*FIFO, "--out", "run").code == 0
    before = (tmp_path / "run" / "run.jsonl").read_bytes()
    other = ("sim", "--policy", "equi", *SMALL, "--out", "run")
    refused = ones(*other)
    assert refused == Result(
        2,
        "",
        "ones: run: holds run.jsonl of an earlier run; name another directory, or --overwrite\n",
    )
    assert (tmp_path / "run" / "run.jsonl").read_bytes() == before
    stale = tmp_path / "run" / "run.jsonl.snapshot"
    stale.write_text("of the earlier run")
    assert ones(*other, "--overwrite").code == 0
    assert (tmp_path / "run" / "run.jsonl").read_bytes() != before
    assert not stale.exists()


def test_settings_of_a_policy_change_what_it_does(ones: Ones) -> None:
    plain = ones(*FIFO, "--jobs", "30", "--gap", "1", "--json")
    backfill = ones(*FIFO, "--jobs", "30", "--gap", "1", "--json", "--set", "backfill=true")
    assert backfill.code == 0
    assert backfill.json["mean_queue"] < plain.json["mean_queue"]


def test_a_policy_of_a_file_runs_and_is_replayed_from_anywhere(
    ones: Ones, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from ones.policies.fifo import Fifo\nclass Mine(Fifo):\n    pass\n")
    own = ones("sim", "--policy", "mine.py", *SMALL, "--out", "run", "--json")
    assert own.json["mean_jct"] == ones(*FIFO, "--json").json["mean_jct"]
    assert own.json["policy"] == "mine.py"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert ones("replay", "../run/run.jsonl").code == 0
    assert ones("replay", "../run/run.jsonl", "--policy", "../mine.py").code == 0


def test_a_policy_that_raises_is_reported_in_two_lines(ones: Ones, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from ones.policies.fifo import Fifo\n"
        "class Mine(Fifo):\n"
        "    def decide(self, view):\n"
        "        return 1 / 0\n"
    )
    result = ones("sim", "--policy", "mine.py", *SMALL)
    assert result.code == 70
    first, second = result.err.splitlines()
    assert first == (
        "ones: bug: the policy: `decide` raised ZeroDivisionError: division by zero (mine.py:4)"
    )
    assert second.startswith("ones: set ONES_TRACEBACK=1 for a traceback")


def test_flags_variables_and_file_reach_the_run(
    ones: Ones, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ones.toml").write_text('[sim]\npolicy = "fifo"\ngpus = 99\njobs = 99\n')
    monkeypatch.setenv("ONES_SIM_GPUS", "16")
    row = ones("sim", "--jobs", "5", "--json").json
    assert (row["policy"], row["gpus"], row["jobs"]) == ("fifo", 16, 5)


def test_settings_that_were_used_are_in_the_log(ones: Ones, tmp_path: Path) -> None:
    (tmp_path / "ones.toml").write_text("[policy.fifo]\nbackfill = true\n")
    assert ones(*FIFO, "--out", "run").code == 0
    assert RunLog(tmp_path / "run" / "run.jsonl").header.settings == {"backfill": True}
    assert ones("replay", "run/run.jsonl").code == 0


# workloads


def test_a_generated_trace_is_simulated_like_the_generated_workload(ones: Ones) -> None:
    made = ones("trace", "generate", *SMALL, "--out", "t.csv")
    assert made == Result(0, "", "8 jobs in t.csv\n")
    direct = ones(*FIFO, "--json").json
    by_file = ones(*FIFO, "--workload", "t.csv", "--json").json
    differ = {key for key in direct if direct[key] != by_file[key]}
    assert differ <= {"workload", "wall_seconds", "policy_cpu_seconds"}


def test_a_trace_goes_to_standard_output_and_back(ones: Ones, tmp_path: Path) -> None:
    printed = ones("trace", "generate", "--jobs", "60", "--load", "0.8", "--gpus", "64")
    assert (printed.code, printed.err) == (0, "")
    (tmp_path / "t.csv").write_text(printed.out)
    found = ones("trace", "inspect", "t.csv", "--gpus", "64", "--json").json
    assert found["jobs"] == sum(found["kinds"].values()) == 60
    assert found["jobs"] == sum(found["requested_gpus"].values())
    assert found["gpus"] == 64
    table = ones("trace", "inspect", "t.csv").out
    for word in ("span seconds", "bert-cola", "requested gpus"):
        assert word in table


def test_kinds_may_be_hidden_or_all_different(ones: Ones, tmp_path: Path) -> None:
    """Also through a file, in which a missing kind would be the model."""
    for option, kinds in (("--hide-kinds", 1), ("--own-kinds", 8)):
        assert ones("trace", "generate", *SMALL, option, "--out", "t.csv").code == 0
        found = ones("trace", "inspect", "t.csv", "--json").json["kinds"]
        assert len(found) == kinds
        assert ("" in found) == (option == "--hide-kinds")
        assert ones(*FIFO, option, "--json").json["finished"] == 8
    refused = ones(*FIFO, "--hide-kinds", "--own-kinds")
    assert refused.code == 2
    assert refused.err == "ones: --hide-kinds and --own-kinds exclude each other\n"


def test_bench_sim_prints_the_promised_keys(ones: Ones) -> None:
    found = ones("bench", "sim", "--gpus", "8,16", "--jobs", "20,40", "--json")
    assert found.code == 0
    told = found.json
    assert told["bench"] == "sim"
    assert set(told) >= {"bench", "commit", "load_average", "rows"}
    for row in told["rows"]:
        assert set(row) >= {
            "case", "n", "gpus", "jobs", "policy", "event", "events_per_second",
            "microseconds_per_event", "peak_mb", "wall_seconds", "rival",
            "rival_microseconds_per_event", "ratio",
        }  # fmt: skip
    cases = {(row["gpus"], row["jobs"], row["event"]) for row in told["rows"]}
    for event in ("submit", "epoch", "end", "all"):
        assert {(8, 20, event), (16, 40, event)} <= cases


# replay


def test_replay_under_another_policy_names_the_command_for_it(ones: Ones) -> None:
    assert ones(*FIFO, "--out", "run").code == 0
    found = ones("replay", "run/run.jsonl", "--policy", "equi")
    assert (found.code, found.out) == (2, "")
    assert found.err.count("\n") == 1
    assert "ones sim --policy equi --workload run/run.jsonl" in found.err
    again = ones("sim", "--policy", "equi", "--workload", "run/run.jsonl", *SMALL[:2], "--json")
    assert (again.code, again.json["finished"]) == (0, 8)
    assert ones("replay", "run/run.jsonl", "--policy", "fifo").code == 0
    slip = ones("replay", "run/run.jsonl", "--policy", "fifoo")
    assert slip == Result(2, "", "ones: unknown policy 'fifoo'; did you mean 'fifo'?\n")


def test_replay_shows_the_first_difference(ones: Ones, tmp_path: Path) -> None:
    assert ones(*FIFO, "--out", "run").code == 0
    log = tmp_path / "run" / "run.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    number = next(n for n, line in enumerate(lines, 1) if '"Plan"' in line)
    log.write_text("".join([*lines[: number - 1], *lines[number:]]))
    found = ones("replay", log)
    assert found.code == 1
    assert found.out.startswith(f"{log}:{number}: the replay differs\n  recorded: no plan\n")
    assert ones("replay", log, "--json").json["difference"]["line"] == number


def test_replay_of_a_log_that_a_crash_cut_off_says_so(ones: Ones, tmp_path: Path) -> None:
    assert ones(*FIFO, "--out", "run").code == 0
    log = tmp_path / "run" / "run.jsonl"
    log.write_bytes(log.read_bytes()[:-20])
    found = ones("replay", log)
    assert found.code == 0
    assert found.out.startswith("same: ")
    assert found.err == f"{log}: the last line is cut off and was not read\n"


# bad input


def wrong_files(directory: Path) -> None:
    (directory / "row.csv").write_text("at,id,model,gpus\n1,a,bert-cola,many\n")
    (directory / "large.csv").write_text("at,id,model,gpus\n1,a,bert-cola,128\n")
    (directory / "empty").write_text("")
    (directory / "binary").write_bytes(b"\x89PNG\r\n\x1a\n")
    (directory / "cut.jsonl").write_text('{"type":"Header","version":1,')
    (directory / "old.jsonl").write_text(
        '{"type":"Header","version":0,"software":"0","policy":"fifo","seed":0,"nodes":[],'
        '"switch_cost":[1,1]}\n'
    )
    good = '{"type":"Header","version":1,"software":"0","policy":"fifo","seed":0,"nodes":[],'
    (directory / "line.jsonl").write_text(
        good + '"switch_cost":[1,1]}\n{"type":"Woke","at":"noon"}\n'
    )
    (directory / "policy.jsonl").write_text(
        good.replace("fifo", "fifoo") + '"switch_cost":[1,1]}\n'
    )


BAD_RUNS = {
    "--policy fifoo": "unknown policy 'fifoo'; did you mean 'fifo'?",
    "--policy zzz": "unknown policy 'zzz'; known: ",
    "--policy fifo --set backfil=1": (
        "unknown setting of policy fifo 'backfil'; did you mean 'backfill'?"
    ),
    "--policy fifo --set backfill=maybe": "backfill: 'maybe' is not true or false",
    "--policy equi --set quantum=0": "policy equi: quantum 0.0 is not at least 1.0",
    "--policy equi --set quantum=nan": "quantum: 'nan' is not a number",
    "--set quantum": "--set: 'quantum' is not KEY=VALUE",
    "--policy equi --set seed=1": "unknown setting of policy equi 'seed'; known: batch_gain,",
    "--mechanism elastc": "unknown mechanism 'elastc'; did you mean 'elastic'?",
    "--gpus 0": "gpus: 0 is not at least 1",
    "--gpus -4": "gpus: -4 is not at least 1",
    "--gpus-per-node 0": "gpus per node: 0 is not at least 1",
    "--gpus 2 --jobs 50": "paper seed 0: job j13: requested_gpus 8 is more than the 2 GPUs",
    "--jobs 0": "jobs: 0 is not at least 1",
    "--seed -1": "seed: -1 is negative",
    "--gap -1": "gap: -1.0 is not a number of seconds",
    "--load 0": "load: 0.0 is not a number above 0",
    "--load 1 --gpus 0": "gpus: 0 is not at least 1",
    "--scatter 3": "scatter: 3.0 is not in 0..2",
    "--workload paper-artifact --gap 9": "--gap: paper-artifact has its own arrivals",
    "--workload row.csv --scatter 1": "--scatter: row.csv has its own arrivals",
    "--workload no.csv": "no.csv: cannot be read: No such file or directory",
    "--workload .": ".: cannot be read: Is a directory",
    "--workload empty": "empty: is empty: a trace begins with a header",
    "--workload binary": "binary: is not text in UTF-8",
    "--workload row.csv": "row.csv:2: gpus: 'many' is not a whole number",
    "--workload large.csv": "large.csv:2: gpus: job a: requested_gpus 128 is more than the 64 GPUs",
    "--gpus abc": "Invalid value for '--gpus': ",
    "--polcy fifo": "No such option: --polcy ",
    "fifo": "Got unexpected extra argument",
}


@pytest.mark.parametrize("arguments", BAD_RUNS)
def test_a_run_that_cannot_be_is_one_line_and_leaves_nothing_behind(
    ones: Ones, tmp_path: Path, arguments: str
) -> None:
    wrong_files(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    found = ones("sim", *arguments.split(), "--out", "new/run")
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith(f"ones: {BAD_RUNS[arguments]}")
    assert found.err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_a_wrong_word_on_the_command_line_is_shown_with_where_to_look(ones: Ones) -> None:
    assert ones("sim", "--gpus", "abc").err.endswith(" (got 'abc') (see ones sim --help)\n")
    assert ones("simm").err == (
        "ones: No such command 'simm'. Did you mean 'sim'? (see ones --help)\n"
    )


BAD_COMMANDS = {
    "replay no.jsonl": "no.jsonl: cannot be read: No such file or directory",
    "replay .": ".: cannot be read: Is a directory",
    "replay empty": "empty: is empty: a run log begins with a header",
    "replay binary": "binary:1: is not text in UTF-8",
    "replay cut.jsonl": "cut.jsonl:1: the header is cut off",
    "replay old.jsonl": "old.jsonl:1: version: 0 is not supported; this version of ones reads 1",
    "replay line.jsonl": "line.jsonl:2: at: 'noon' is not a number",
    "replay policy.jsonl": "policy.jsonl:1: unknown policy 'fifoo'; did you mean 'fifo'?",
    "replay row.csv": "row.csv:1: 'at,id,model,gpus' is not JSON",
    "trace inspect cut.jsonl": "cut.jsonl:1: the header is cut off",
    "trace inspect line.jsonl": "line.jsonl:2: at: 'noon' is not a number",
    "trace inspect row.csv": "row.csv:2: gpus: 'many' is not a whole number",
    "trace generate --workload x": "workload: 'x' cannot be generated; known: paper",
    "trace generate --jobs 0 --out t.csv": "jobs: 0 is not at least 1",
    "sim --jobs 3 --out empty": "empty: is a file, not a directory",
    "sim --jobs 3 --snapshots": "--snapshots: only together with --out",
    "bench sim --gpus 8,x": "--gpus: '8,x' is not a list of whole numbers",
    "bench sim --gpus 8 --jobs 2,3": "--jobs: 2 numbers for 1 sizes",
    "bench sim --gpus 0": "--gpus: 0 is not at least 1",
    "bench sim --policy zzz": "unknown policy 'zzz'; known: ",
    "run -- no-such-program": "no-such-program: no such program",
}


@pytest.mark.parametrize("command", BAD_COMMANDS)
def test_a_command_that_cannot_be_is_one_line(ones: Ones, tmp_path: Path, command: str) -> None:
    wrong_files(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    found = ones(*command.split())
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith(f"ones: {BAD_COMMANDS[command]}")
    assert found.err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_a_wrong_settings_file_is_named_whatever_the_command(ones: Ones, tmp_path: Path) -> None:
    (tmp_path / "ones.toml").write_text("[sim]\ngpus = 'many'\n")
    for command in ("config", "sim", "trace generate"):
        found = ones(*command.split())
        assert found.code == 2
        assert found.err == f"ones: {tmp_path}/ones.toml: sim.gpus: 'many' is not a whole number\n"


@pytest.mark.parametrize("command", ["trace generate --out no/t.csv", "sim --out empty/run"])
def test_a_place_that_cannot_be_written_is_the_world_s_fault(
    ones: Ones, tmp_path: Path, command: str
) -> None:
    wrong_files(tmp_path)
    found = ones(*command.split(), "--jobs", "3")
    assert (found.code, found.out) == (1, "")
    assert found.err.count("\n") == 1


# what the world does to a process


def test_control_c_keeps_the_log_and_says_so_in_one_line(ones: Ones, tmp_path: Path) -> None:
    log = tmp_path / "run" / "run.jsonl"
    with start(
        "sim", "--policy", "fifo", "--jobs", "20000", "--out", "run",
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # as in a terminal
    ) as process:  # fmt: skip
        deadline = time.monotonic() + PATIENCE
        while not log.exists() or log.stat().st_size < 200_000:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert out == ""
    assert err == "ones: interrupted; the log so far is run/run.jsonl\n"
    assert [path.name for path in log.parent.iterdir()] == ["run.jsonl"]
    assert sum(1 for _ in RunLog(log)) > 100
    found = ones("replay", log)
    assert (found.code, found.out[:6]) == (0, "same: ")


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    with start("trace", "generate", "--jobs", "20000") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("at,id,model,")
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=PATIENCE) == 0


def test_output_to_a_full_disk_is_an_error_of_one_line() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with Path("/dev/full").open("w") as full:
        found = run_alone("--version", stdout=full)
    assert (found.code, found.err) == (1, "ones: standard output: No space left on device\n")


def modules_after(statement: str) -> set[str]:
    code = f"{statement}; import sys, json; print(json.dumps(sorted(sys.modules)))"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    return set(json.loads(found.stdout))


def test_importing_ones_loads_nothing_heavy_and_is_quick() -> None:
    assert modules_after("import ones").isdisjoint(
        {"torch", "ray", "numba", "numpy", "scipy", "matplotlib", "typer", "rich", "pydantic"}
    )
    code = (
        "import time; began = time.process_time(); import ones; print(time.process_time() - began)"
    )
    # of the process and not of the clock, and the best of several: others may be busy here
    seconds = min(
        float(subprocess.check_output([sys.executable, "-c", code], text=True)) for _ in range(5)
    )
    assert seconds < 0.15, "with all that it imports"


def test_the_command_line_loads_no_figures_and_no_training() -> None:
    loaded = modules_after("import ones.cli.app, ones.lab.runs")
    assert loaded.isdisjoint({"torch", "ray", "numba", "matplotlib"})


def test_what_cannot_be_simulated_of_a_file_is_told(ones: Ones) -> None:
    philly = Path(__file__).parent.parent / "data" / "philly.csv"
    found = ones("sim", "--workload", str(philly), "--policy", "fifo", "--gpus", "16")
    assert f"2 jobs of {philly} cannot be simulated and were left out" in found.err
