"""`ones doctor`: checks the set-up; with `--gpu`, elastic training on the GPUs of this machine."""

from __future__ import annotations

import json as json_text
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ones.cli.options import Json, StateDirectory
from ones.cli.output import out, print_json, say
from ones.cli.settings import effective
from ones.cli.terminal import visible
from ones.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ones.apps.doctor import Finding

MARKS = {
    "ok": "[green]ok[/green]",
    "note": "[cyan]note[/cyan]",
    "warning": "[yellow]warning[/yellow]",
    "problem": "[red bold]problem[/red bold]",
}
REPORT = Path("ones-gpu-report.json")


def doctor(
    state: StateDirectory = None,
    gpu: Annotated[
        bool, typer.Option("--gpu", help="Train on the free GPUs for about 10 min, and check it.")
    ] = False,
    emulate: Annotated[
        bool, typer.Option("--emulate", help="With --gpu: a short run on two emulated GPUs.")
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(help=f"With --gpu: file for the JSON to send back (default: {REPORT})."),
    ] = None,
    json: Json = False,
) -> int:
    """Check the set-up: problems and their remedies. Exit code 1 if there is a problem."""
    if gpu:
        return _check_gpus(emulate=emulate, report=report, json=json)
    if emulate or report is not None:
        raise UserError("--emulate and --report belong to --gpu: ones doctor --gpu --emulate")
    from ones.apps.doctor import examine

    settings = effective(section="service", state=str(state) if state else None).settings
    found = examine(settings.service)
    problems = [finding for finding in found if finding.status == "problem"]
    if json:
        print_json({"ok": not problems, "checks": [asdict(finding) for finding in found]})
    else:
        _print_table(found)
    return _exit_code(len(problems), json=json)


def _check_gpus(*, emulate: bool, report: Path | None, json: bool) -> int:
    from ones.apps.doctor.gpu import acceptance_machine, examine_gpus
    from ones.cli.run import without_engine_warnings

    path = report or (None if json else REPORT)
    if path is not None and not path.parent.is_dir():
        raise UserError(f"--report {path}: {path.parent} is not a directory")

    def show_start(name: str, number: int, total: int) -> None:
        if not json:
            say(f"{number} of {total}: {name}")

    with without_engine_warnings(), acceptance_machine(emulate=emulate) as (machine, directory):
        checks = list(examine_gpus(machine, directory, show_start))
    problems = [check for check in checks if check.finding.status == "problem"]
    document = {
        "ok": not problems,
        "emulated": emulate,
        "checks": [check.to_json() for check in checks],
    }
    if path is not None:
        path.write_text(json_text.dumps(document, indent=1) + "\n")
    if json:
        print_json(document)
    else:
        _print_table([check.finding for check in checks])
        say(f"{path}: the report to send back")
    return _exit_code(len(problems), json=json)


def _print_table(found: Sequence[Finding]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for finding in found:
        text = escape(visible(finding.found))
        if finding.advice:
            text += f"\n[bold]→ {escape(visible(finding.advice))}[/bold]"
        table.add_row(MARKS[finding.status], finding.name, text)
    out().print(table)


def _exit_code(problems: int, *, json: bool) -> int:
    if problems and not json:
        say(f"{problems} problem{'s' if problems > 1 else ''}")
    return 1 if problems else 0
