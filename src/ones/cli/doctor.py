"""`ones doctor`: checks the set-up."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ones.cli.options import Json, StateDirectory
from ones.cli.output import out, print_json, print_table, say
from ones.cli.settings import effective
from ones.cli.terminal import visible

MARKS = {
    "ok": "[green]ok[/green]",
    "note": "[cyan]note[/cyan]",
    "warning": "[yellow]warning[/yellow]",
    "problem": "[red bold]problem[/red bold]",
}


def doctor(
    script: Annotated[
        Path | None,
        typer.Option(help="Read this training script, without running it: can it be elastic?"),
    ] = None,
    state: StateDirectory = None,
    json: Json = False,
) -> int:
    """Check the set-up: problems and their remedies. Exit code 1 if there is a problem.

    Example: ones doctor --script train.py
    """
    if script is not None:
        _show_script(script, json=json)
        return 0
    from rich.markup import escape
    from rich.table import Table

    from ones.apps.doctor import examine

    settings = effective(section="service", state=str(state) if state else None).settings
    found = examine(settings.service)
    problems = [finding for finding in found if finding.status == "problem"]
    if json:
        print_json({"ok": not problems, "checks": [asdict(finding) for finding in found]})
        return 1 if problems else 0
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for finding in found:
        text = escape(visible(finding.found))
        if finding.advice:
            text += f"\n[bold]→ {escape(visible(finding.advice))}[/bold]"
        table.add_row(MARKS[finding.status], finding.name, text)
    out().print(table)
    if problems:
        say(f"{len(problems)} problem{'s' if len(problems) > 1 else ''}")
    return 1 if problems else 0


VERDICTS = {
    "yes": "It is elastic.",
    "after changes": "It can become elastic.",
    "no": "It runs as a fixed-size job: ones submit --gpus N.",
}


def _show_script(path: Path, *, json: bool) -> None:
    from ones.apps.script_check import check_script

    report = check_script(path)
    if json:
        print_json(asdict(report))
        return
    console = out()
    console.print(f"{visible(report.script)}: {report.title}", markup=False, highlight=False)
    if report.traits:
        console.print(f"It also has: {', '.join(report.traits)}", markup=False, highlight=False)
    if report.changes:
        rows = [
            [change.line, visible(change.found), visible(change.do)] for change in report.changes
        ]
        print_table(None, ["line", "found", "do"], rows)
    console.print(f"{VERDICTS[report.elastic]} Guide: {report.guide}", markup=False)
