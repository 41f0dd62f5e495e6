"""`ones submit`: submits a job."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import date
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ones.cli.client import Client, connect, of_job
from ones.cli.durations import seconds_of, seconds_until
from ones.cli.job_files import MARK, lines_in_script, read_job_file, runnable, sweep_of
from ones.cli.logs import follow_job
from ones.cli.options import Json, StateDirectory
from ones.cli.output import InterruptedRunError, print_json, say
from ones.cli.scripts import Script, lacks_ones, look_at
from ones.cli.wait import await_all
from ones.errors import InvalidFileError, UserError

if TYPE_CHECKING:
    from ones.client.working_tree import PackedTree

#: options that have another name in the HTTP API
IN_FILES = {"max_run": "max_run_seconds", "deadline": "deadline_seconds", "tag": "tags"}
NOT_IN_SCRIPTS = ("command", "file", "env", "cwd", "wait", "follow", "state", "json")


def submit(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND...", help="python train.py ...")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-F", help="A TOML or YAML file with these options and `command`."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", "-n", help="Name of the job.")] = None,
    kind: Annotated[
        str | None, typer.Option(help="Kind of job: policies learn from earlier jobs of a kind.")
    ] = None,
    priority: Annotated[
        float | None, typer.Option("--priority", "-p", help="Higher goes first.")
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option("--gpus", "-g", help="Fixed-size job: one process with this number of GPUs."),
    ] = None,
    min_gpus: Annotated[int | None, typer.Option(help="Minimum number of GPUs.")] = None,
    max_gpus: Annotated[int | None, typer.Option(help="Maximum number of GPUs.")] = None,
    requested_gpus: Annotated[
        int | None, typer.Option(help="GPUs, for policies that do not choose a size.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Global batch at the start.")] = None,
    fixed_batch: Annotated[
        bool, typer.Option("--fixed-batch", help="Never change the batch: --batch or the script's.")
    ] = False,
    min_batch: Annotated[int | None, typer.Option(help="Smallest global batch.")] = None,
    max_batch: Annotated[int | None, typer.Option(help="Largest global batch.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Number of epochs of the script.")] = None,
    max_epochs: Annotated[
        int | None, typer.Option(help="End the job after this number of epochs.")
    ] = None,
    max_steps: Annotated[
        int | None,
        typer.Option(help="End the job after this number of steps of the script's own batch."),
    ] = None,
    max_samples: Annotated[
        int | None, typer.Option(help="End the job after this number of samples.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="End the job after this number of tokens, if it counts them.")
    ] = None,
    target_accuracy: Annotated[
        float | None, typer.Option(help="End the job when its accuracy is above this.")
    ] = None,
    target_epochs: Annotated[
        int | None, typer.Option(help="Epochs in a row that must be above the target.")
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(help="End the job after this number of epochs without improvement."),
    ] = None,
    retries: Annotated[int | None, typer.Option(help="Restarts after all workers died.")] = None,
    max_run: Annotated[
        str | None,
        typer.Option(
            "--max-run",
            "-t",
            metavar="TIME",
            help="Cancel the job after this time of running: 90s, 2h, 1-02:00.",
        ),
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="When the job should have ended: 2h, or 2026-01-31T18:00. The policy oasis uses"
            " it; no job is cancelled for it.",
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            "-e",
            metavar="NAME=VALUE",
            help="Variable for the job's environment; repeatable.",
        ),
    ] = None,
    cwd: Annotated[Path | None, typer.Option("--cwd", "-C", help="Working directory.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Tag of the job; repeatable.")] = None,
    after: Annotated[
        list[str] | None,
        typer.Option(
            metavar="JOB[:ok|any]",
            help="Start after this job has completed (ok) or ended (any); repeatable.",
        ),
    ] = None,
    array: Annotated[
        str | None,
        typer.Option(
            metavar="INDEXES", help="A task for each index: 0-15, or 0-15%4 (4 at a time)."
        ),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUES",
            help="A task for each value: lr=0.1,0.01 or seed=1..3; repeatable: all combinations.",
        ),
    ] = None,
    snapshot: Annotated[
        bool,
        typer.Option(
            "--snapshot", help="Run the files as they are now; else as they are at the start."
        ),
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Wait until the job has ended; exit with its code.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print the job's output; implies --wait.")
    ] = False,
    state: StateDirectory = None,
    json: Json = False,
) -> int:
    """Submit a job and print its id.

    A script may have options in lines that begin with `#ONES`, as `#ONES --max-gpus 4`. Options on
    the command line come before these, and these before those of a file.

    Example: ones submit --name digits --max-gpus 4 -- python train.py --epochs 20
    """
    given: dict[str, Any] = _from_file(file) if file is not None else {}
    options = {
        "name": name, "kind": kind, "priority": priority, "gpus": gpus, "min_gpus": min_gpus,
        "max_gpus": max_gpus, "requested_gpus": requested_gpus, "batch": batch, "epochs": epochs,
        "fixed_batch": fixed_batch or None, "min_batch": min_batch, "max_batch": max_batch,
        "max_epochs": max_epochs, "max_steps": max_steps, "max_samples": max_samples,
        "max_tokens": max_tokens, "target_accuracy": target_accuracy,
        "target_epochs": target_epochs, "patience": patience, "retries": retries,
        "max_run": max_run, "deadline": deadline, "tag": tag, "after": after, "array": array,
        "sweep": sweep, "snapshot": snapshot or None,
    }  # fmt: skip
    given["command"] = command or given.get("command")
    if not given["command"] or not given["command"][0]:
        raise UserError("no command given; usage: ones submit [options] -- python train.py ...")
    directory = Path(cwd or given.get("cwd") or Path.cwd()).absolute()
    given["command"] = runnable(given["command"], directory)
    given |= {**_in_script(given["command"], directory), **_for_api(options)}
    for key, value in given.items():
        if isinstance(value, float) and not isfinite(value):
            raise UserError(f"{key}: {value} is not a finite number")
    if not directory.is_dir():
        raise UserError(f"cwd: {directory}: no such directory")
    given["env"] = _sendable({**os.environ, **given.get("env", {}), **_pairs(env or [])})
    script = look_at(given["command"], directory, given["env"])
    given.update(
        command=script.command, cwd=str(directory), git=_git(directory), files=script.files
    )
    if "gpus" not in given:
        given.setdefault("elastic", script.elastic)
    client = connect(state)
    packed = given.pop("snapshot", None)
    tree = _upload(client, given) if packed else None
    made = client.post("/api/jobs", given)
    job = made["id"]
    if json and not (wait or follow):
        print_json(made if made["tasks"] else {"id": job})
    elif not json:
        print(job)
    _say_code(job, given, tree)
    _say_hints(job, script, given, directory)
    if made["tasks"] and (wait or follow):
        return await_all(client, made["tasks"], json=json)
    if wait or follow:
        return _await_end(client, job, follow=follow, json=json)
    return 0


def _upload(client: Client, given: dict[str, Any]) -> PackedTree:
    """Upload the working tree, and change the request so that the job uses it."""
    from ones.client.snapshot import finished, upload

    steps = upload(given["command"], given["cwd"], given["env"])
    uploaded = finished(steps, client.send)
    given.update(uploaded.changes)
    return uploaded.tree


def _say_code(job: str, given: dict[str, Any], tree: PackedTree | None) -> None:
    commit = f" (commit {given['git']})" if given["git"] else ""
    if tree is None:
        say(f"{job} runs the files in {given['cwd']} as they are when it starts{commit}")
        return
    size = f"{len(tree.data) / 1e6:.1f} MB" if len(tree.data) > 1e5 else f"{len(tree.data)} bytes"
    say(f"{job} runs a snapshot of {tree.root}{commit}: {len(tree.files)} files, {size}")
    for name in tree.left_out:
        say(f"not in the snapshot, because it is outside of the tree or no file: {name}")


def _say_hints(job: str, script: Script, given: dict[str, Any], directory: Path) -> None:
    if script.elastic is False and "gpus" not in given:
        say(f"{script.name} does not call ones.join: {job} runs as a fixed-size job on 1 GPU")
        if hint := _hint(script):
            say(hint)
    if script.elastic and "gpus" in given:
        number = "1 GPU" if given["gpus"] == 1 else f"{given['gpus']} GPUs"
        say(
            f"--gpus makes {job} a fixed-size job: one process with {number}, and ones.join trains"
            " on one of them; for an elastic job use --min-gpus and --max-gpus"
        )
    if script.elastic and lacks_ones(script.command[0], directory, given["env"]):
        say(f"{script.command[0]} has no module ones; activate the right environment")


def _hint(script: Script) -> str:
    """How the script of a fixed-size job could become elastic; empty if it is not known."""
    from ones.apps.script_check import check_script

    path = next((name for name in script.files if name.endswith(".py")), "")
    with suppress(UserError):
        report = check_script(Path(path))
        if report.elastic == "after changes":
            return f"It can become elastic ({report.title}): ones doctor --script {script.name}"
    return ""


def _await_end(client: Client, job: str, *, follow: bool, json: bool) -> int:
    try:
        if follow:
            follow_job(client, job)
        while (card := client.get(of_job(job)))["ended_at"] is None:
            time.sleep(0.3)
    except KeyboardInterrupt:
        raise InterruptedRunError(
            f"detached; {job} continues. Output: ones logs -f {job}; stop it: ones cancel {job}"
        ) from None
    if json:
        print_json(card)
    else:
        say(f"{job}: {card['state']}" + (f" ({card['message']})" if card["message"] else ""))
    if card["state"] in ("finished", "converged"):
        return 0
    codes = [p["exit_code"] for p in client.get(of_job(job, "launches"))]
    return next((code for code in reversed(codes) if code), 1)


def _git(directory: Path) -> str:
    """The commit of a directory, and whether files differ from it; empty without git."""

    def ask(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(directory), *arguments],
            capture_output=True, text=True, timeout=10, check=True,
        ).stdout.strip()  # fmt: skip

    with suppress(OSError, subprocess.SubprocessError):
        commit = ask("rev-parse", "--short=12", "HEAD")
        return commit + (" with changes" if ask("status", "--porcelain", "-uno") else "")
    return ""


def _sendable(env: dict[str, str]) -> dict[str, str]:
    """The environment without variables that are not text, which JSON cannot have."""
    kept = {}
    for name, value in env.items():
        try:
            (name + value).encode()
        except UnicodeEncodeError:
            say(f"variable {name!r} is not passed to the job: it is not valid UTF-8")
        else:
            kept[name] = value
    return kept


def _pairs(pairs: list[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UserError(f"--env: {pair!r} is not NAME=VALUE")
        found[name] = value
    return found


def _from_file(path: Path) -> dict[str, Any]:
    # keys are names of options
    named = {key.replace("-", "_"): value for key, value in read_job_file(path).items()}
    _check(path, named)
    return _for_api(named)


def _for_api(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are given, under their names in the HTTP API."""
    given = {IN_FILES.get(key, key): v for key, v in options.items() if v is not None}
    limit = given.get("max_run_seconds")
    if isinstance(limit, str):
        given["max_run_seconds"] = seconds_of(limit, "--max-run")
    wished = given.get("deadline_seconds")
    if isinstance(wished, str | date):
        given["deadline_seconds"] = seconds_until(str(wished), "--deadline")
    if isinstance(given.get("sweep"), list | tuple):
        given["sweep"] = sweep_of(given["sweep"])
    return given


def _in_script(command: list[str], directory: Path) -> dict[str, Any]:
    """The options in `#ONES` lines of the command's script, parsed as those of `submit`."""
    import typer.main

    usage_error: Any = typer.BadParameter.__base__
    commands = typer.Typer(add_completion=False)
    commands.command()(submit)
    parser: Any = typer.main.get_command(commands)
    found: dict[str, Any] = {}
    for path, line, words in lines_in_script(command, directory):
        try:
            context = parser.make_context("submit", list(words))
        except usage_error as problem:
            raise InvalidFileError(path, problem.format_message(), line=line) from problem
        options = {name: value for name, value in context.params.items() if value}
        refused = [name for name in options if name in NOT_IN_SCRIPTS]
        if refused:
            what = f"{MARK}: only options of the job are possible here, not {refused[0]!r}"
            raise InvalidFileError(path, what, line=line)
        tags = [*found.get("tags", ()), *(options.pop("tag", None) or ())]
        found |= {**_for_api(options), **({"tags": tags} if tags else {})}
    return found


def _check(path: Path, given: dict[str, Any]) -> None:
    """Check the fields that are used here; the service checks the others."""
    command, env, cwd = given.get("command", []), given.get("env", {}), given.get("cwd", "")
    if not isinstance(command, list) or not all(isinstance(part, str) for part in command):
        problem = f'{command!r} is not a list of strings such as ["python", "train.py"]'
        raise InvalidFileError(path, problem, field="command")
    if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
        problem = f'{env!r} is not a table of strings such as {{ SEED = "1" }}'
        raise InvalidFileError(path, problem, field="env")
    if not isinstance(given.get("snapshot", False), bool):
        raise InvalidFileError(
            path, f"{given['snapshot']!r} is not true or false", field="snapshot"
        )
    if not isinstance(cwd, str):
        raise InvalidFileError(path, f"{cwd!r} is not the name of a directory", field="cwd")
