"""What the sweeps found: tables, figures and a sentence for each; as JSON, markdown and a page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ones import __version__
from ones.errors import InvalidFileError
from ones.lab.bench import framed
from ones.lab.bench_tables import markdown
from ones.lab.compare import records_of, write
from ones.lab.frontier import frontier, has_frontier
from ones.lab.kept import Kept
from ones.lab.leads import Lead, leads_of, paired, sentence_of, table_of
from ones.lab.paper.panel import Panel, Verdict
from ones.lab.paper.sweeps import OURS, Sweep
from ones.lab.tables import Record, by_setting, summary_of
from ones.report import page as html
from ones.report.charts import Axis, Curve, Painter, curves, draw

RESULT_NAME, TABLES_NAME, PAGE_NAME = "sweeps.json", "sweeps.md", "sweeps.html"
FIGURES = "figures"

Point = tuple[float, float, float, float]  # where, how much less, from, to
Found = Mapping[str, Any]  # of one sweep, as it is in the JSON


def found_of(sweep: Sweep, kept: Kept, first_seed: int, home: Path) -> dict[str, Any]:
    """What is known of a sweep so far."""
    records: list[Record] = []
    leads: list[Lead] = []
    for part in sweep.parts:
        there = records_of(part.cells(first_seed), kept)
        some = paired([record for record in there if record.row["mean_jct"] is not None])
        records += some
        leads += leads_of(some, OURS, part.world)
    table = table_of(leads)
    figure, told = _figure(sweep, leads, records, home) if leads else (None, "")
    return {
        "name": sweep.name,
        "title": sweep.title,
        "question": sweep.question,
        "commands": [part.command(first_seed, "DIR") for part in sweep.parts],
        "sentence": sentence_of(leads),
        "heads": list(table.heads),
        "table": [list(row) for row in table.rows],
        "leads": [lead.told() for lead in leads],
        "figure": figure,
        "figure_told": told,
    }


def write_sweeps(found: Sequence[Found], command: str, home: Path) -> list[Path]:
    """The page first; `sweeps.json` is what `ones paper --sweeps` reads."""
    frame = {
        "software": __version__,
        "command": command,
        **framed("sweeps", [dict(sweep) for sweep in found]),
    }
    title = "Beyond the paper: where ones leads"
    return [
        write(home / PAGE_NAME, html.page(title, _page(found, command, home))),
        write(home / TABLES_NAME, markdown([frame]) + "\n"),
        write(home / RESULT_NAME, json.dumps(frame, indent=2) + "\n"),
    ]


def panels_of(home: Path) -> list[Panel]:
    """Of kept sweeps, for the page of the paper's evaluation."""
    path = home / RESULT_NAME
    try:
        frame = json.loads(path.read_text(encoding="utf-8"))
        origin = (
            f"simulated with ones {frame['software']} ({frame['commit'] or 'no commit'}),"
            f" {frame['measured_at']}"
        )
        return [_panel(found, origin, home) for found in frame["rows"] if found["leads"]]
    except OSError as problem:
        raise InvalidFileError(path, f"cannot be read: {problem.strerror}") from problem
    except (ValueError, KeyError, TypeError) as problem:
        raise InvalidFileError(path, "is not what `ones paper sweeps` writes") from problem


def _panel(found: Found, origin: str, home: Path) -> Panel:
    seeds = sorted({lead["seeds"] for lead in found["leads"]})
    jobs = sorted({lead["jobs"] for lead in found["leads"]})
    return Panel(
        anchor=f"beyond-{found['name']}",
        title=f"Beyond the paper: {found['title']}",
        paper="None.",
        ours=found["sentence"],
        n=f"{_span(seeds)} seeds of {_span(jobs)} jobs; {origin}",
        spread="95 % bootstrap intervals over seeds, paired",
        verdict=Verdict(None, found["question"]),
        parts=list(_shown(found, home)),
    )


def _span(values: Sequence[int]) -> str:
    return f"{values[0]:,}" if len(values) == 1 else f"{values[0]:,} to {values[-1]:,}"


def _page(found: Sequence[Found], command: str, home: Path) -> Iterator[str]:
    yield html.paragraph("Rebuilt by:")
    yield html.command(command)
    yield html.paragraph(
        "Each table is made from runs of `ones compare` over the same jobs and arrivals. Less by:"
        " how much lower the mean completion time of `ones` is, over the same jobs of the same"
        " seeds. 99 % within: over the jobs of all seeds together. The same command again does only"
        " what is missing.",
        quiet=True,
    )
    yield html.contents([(sweep["name"], sweep["title"]) for sweep in found])
    for sweep in found:
        yield html.heading(sweep["title"], anchor=sweep["name"])
        yield html.paragraph(sweep["question"])
        yield html.paragraph(sweep["sentence"])
        yield from _shown(sweep, home)
        yield html.command("\n".join(sweep["commands"]))


def _shown(found: Found, home: Path) -> Iterator[str]:
    if found["figure"]:
        yield html.picture(home / found["figure"], found["figure_told"])
    if found["table"]:
        yield html.table(found["heads"], found["table"])


# figures


def _figure(
    sweep: Sweep, leads: Sequence[Lead], records: Sequence[Record], home: Path
) -> tuple[str | None, str]:
    """Where one number changes along the sweep, a picture of that; else none."""
    if sweep.name == "frontier":
        painters, told = list(_frontiers(records)), (
            "Mean completion time against the time within which 99 % of the jobs of all seeds are"
            " done, as `seniority` moves; left and low is good."
        )  # fmt: skip
    elif len({lead.world for lead in leads}) > 1:
        return None, ""
    else:
        axis = "GPUs" if len({lead.gpus for lead in leads}) > 1 else "load"
        painters, told = list(_by(axis, leads)), (
            f"How much shorter the mean completion time is, against the {axis}; bands: 95 %"
            " intervals over seeds."
        )  # fmt: skip
    if not painters:
        return None, ""
    try:
        drawn = draw(home / FIGURES, sweep.name, painters, columns=2, size=(5.6, 3.9))
    except ImportError:
        return None, ""
    return str(drawn.relative_to(home)), told


def _frontiers(records: Sequence[Record]) -> Iterator[Painter]:
    for setting, labels in by_setting(records).items():
        rows = summary_of([run for runs in labels.values() for run in runs])
        if has_frontier(rows):
            load = "" if setting.load is None else f", load {setting.load:g}"
            yield frontier(f"{setting.mechanism}{load}", rows)


def _by(axis: str, leads: Sequence[Lead]) -> Iterator[Painter]:
    """A painter for each mechanism, a line for each of ours and each rival."""
    for mechanism in dict.fromkeys(lead.mechanism for lead in leads):
        lines: dict[str, list[Point]] = {}
        for lead in leads:
            at = lead.gpus if axis == "GPUs" else lead.load
            if lead.mechanism != mechanism or at is None:
                continue
            for a in lead.against:
                name = f"over {a.rival}" if lead.label == OURS else f"{lead.label} over {a.rival}"
                points = lines.setdefault(name, [])
                points.append((at, a.less_percent, a.less_low, a.less_high))
        ticks = sorted({point[0] for points in lines.values() for point in points})
        if len(ticks) > 1:
            drawn = [_curve(name, sorted(points)) for name, points in lines.items()]
            across = Axis(axis, log=axis == "GPUs", ticks=ticks)
            yield curves(f"{mechanism} re-scaling", across, Axis("mean less by (%)"), drawn)


def _curve(name: str, points: Sequence[Point]) -> Curve:
    at, less, low, high = ([point[i] for point in points] for i in range(4))
    return Curve(name, at, less, low, high)
