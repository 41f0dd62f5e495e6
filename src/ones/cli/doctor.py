"""`ones doctor`: checks the set-up."""

from __future__ import annotations

from dataclasses import asdict

from ones.cli.options import Json, StateDirectory
from ones.cli.output import out, print_json, say
from ones.cli.settings import effective
from ones.cli.terminal import visible

MARKS = {
    "ok": "[green]ok[/green]",
    "note": "[cyan]note[/cyan]",
    "warning": "[yellow]warning[/yellow]",
    "problem": "[red bold]problem[/red bold]",
}


def doctor(
    state: StateDirectory = None,
    json: Json = False,
) -> int:
    """Check the set-up: problems and their remedies. Exit code 1 if there is a problem."""
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
