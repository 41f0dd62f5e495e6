"""Results of the sweeps: tables, figures and a sentence for each, as JSON, markdown and HTML."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ones import __version__
from ones.errors import InvalidFileError
from ones.lab.bench.result import bench_result, origin_sentence
from ones.lab.comparison.frontier import frontier, has_frontier
from ones.lab.comparison.margins import (
    PolicyMargin,
    margins_of,
    paired_records,
    sentence_of,
    table_of,
)
from ones.lab.comparison.result_store import ResultStore
from ones.lab.comparison.results import records_of, write_text
from ones.lab.comparison.summary import Record, by_setting, summary_of
from ones.lab.paper.panel import PaperPanel, Verdict
from ones.lab.paper.sweeps import OURS, Sweep
from ones.report import page as html
from ones.report.charts import Axis, Curve, Painter, curves, draw

RESULT_NAME, TABLES_NAME, PAGE_NAME = "sweeps.json", "sweeps.md", "sweeps.html"
FIGURES = "figures"

Point = tuple[float, float, float, float]  # position, reduction, its interval
SweepJson = Mapping[str, Any]  # result of one sweep


def sweep_result(sweep: Sweep, store: ResultStore, first_seed: int, home: Path) -> dict[str, Any]:
    """The result of a sweep from the runs that are stored."""
    records: list[Record] = []
    margins: list[PolicyMargin] = []
    for part in sweep.parts:
        there = records_of(part.cells(first_seed), store)
        pairs = paired_records([record for record in there if record.row["mean_jct"] is not None])
        records += pairs
        margins += margins_of(pairs, OURS, part.scenario)
    table = table_of(margins)
    figure, caption = _figure(sweep, margins, records, home) if margins else (None, "")
    return {
        "name": sweep.name,
        "title": sweep.title,
        "question": sweep.question,
        "commands": [part.command(first_seed, "DIR") for part in sweep.parts],
        "sentence": sentence_of(margins),
        "heads": list(table.heads),
        "table": [list(row) for row in table.rows],
        "leads": [margin.to_json() for margin in margins],
        "figure": figure,
        "figure_told": caption,
    }


def write_sweeps(sweeps: Sequence[SweepJson], command: str, home: Path) -> list[Path]:
    """Writes the page, tables and `sweeps.json`, which `ones paper --sweeps` reads."""
    result = {
        "software": __version__,
        "command": command,
        **bench_result("sweeps", [dict(sweep) for sweep in sweeps]),
    }
    title = "Beyond the paper: where ones leads"
    tables = "\n\n".join([*sweeps_markdown(sweeps), origin_sentence(result)])
    return [
        write_text(home / PAGE_NAME, html.page(title, _page(sweeps, command, home))),
        write_text(home / TABLES_NAME, tables + "\n"),
        write_text(home / RESULT_NAME, json.dumps(result, indent=2) + "\n"),
    ]


def sweeps_markdown(sweeps: Sequence[SweepJson]) -> Iterator[str]:
    """Question, answer and table of each sweep."""
    for sweep in sweeps:
        yield f"### {sweep['title']}"
        yield f"{sweep['question']} {sweep['sentence']}"
        yield markdown_table(sweep["heads"], sweep["table"])


def markdown_table(heads: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows)


def read_panels(home: Path) -> list[PaperPanel]:
    """Reads the panels of stored sweeps for the page of the paper's evaluation."""
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


def _panel(found: SweepJson, origin: str, home: Path) -> PaperPanel:
    seeds = sorted({margin["seeds"] for margin in found["leads"]})
    jobs = sorted({margin["jobs"] for margin in found["leads"]})
    return PaperPanel(
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


def _page(found: Sequence[SweepJson], command: str, home: Path) -> Iterator[str]:
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


def _shown(found: SweepJson, home: Path) -> Iterator[str]:
    if found["figure"]:
        yield html.picture(home / found["figure"], found["figure_told"])
    if found["table"]:
        yield html.table(found["heads"], found["table"])


# figures


def _figure(
    sweep: Sweep, margins: Sequence[PolicyMargin], records: Sequence[Record], home: Path
) -> tuple[str | None, str]:
    """A figure if one number varies along the sweep."""
    if sweep.name == "frontier":
        painters, caption = list(_frontiers(records)), (
            "Mean completion time against the time within which 99 % of the jobs of all seeds are"
            " done, as `ageing` moves; left and low is good."
        )  # fmt: skip
    elif len({margin.scenario for margin in margins}) > 1:
        return None, ""
    else:
        axis = "GPUs" if len({margin.gpus for margin in margins}) > 1 else "load"
        painters, caption = list(_by(axis, margins)), (
            f"How much shorter the mean completion time is, against the {axis}; bands: 95 %"
            " intervals over seeds."
        )  # fmt: skip
    if not painters:
        return None, ""
    try:
        drawn = draw(home / FIGURES, sweep.name, painters, columns=2, size=(5.6, 3.9))
    except ImportError:
        return None, ""
    return str(drawn.relative_to(home)), caption


def _frontiers(records: Sequence[Record]) -> Iterator[Painter]:
    for setting, labels in by_setting(records).items():
        rows = summary_of([run for runs in labels.values() for run in runs])
        if has_frontier(rows):
            load = "" if setting.load is None else f", load {setting.load:g}"
            yield frontier(f"{setting.mechanism}{load}", rows)


def _by(axis: str, margins: Sequence[PolicyMargin]) -> Iterator[Painter]:
    """A painter for each mechanism, with a line for each of our variants and each rival."""
    for mechanism in dict.fromkeys(margin.mechanism for margin in margins):
        lines: dict[str, list[Point]] = {}
        for margin in margins:
            at = margin.gpus if axis == "GPUs" else margin.load
            if margin.mechanism != mechanism or at is None:
                continue
            for a in margin.against:
                name = (
                    f"over {a.rival}" if margin.label == OURS else f"{margin.label} over {a.rival}"
                )
                points = lines.setdefault(name, [])
                points.append((at, a.less_percent, a.less_low, a.less_high))
        ticks = sorted({point[0] for points in lines.values() for point in points})
        if len(ticks) > 1:
            drawn = [_curve(name, sorted(points)) for name, points in lines.items()]
            across = Axis(axis, log=axis == "GPUs", ticks=ticks)
            yield curves(f"{mechanism} rescaling", across, Axis("mean less by (%)"), drawn)


def _curve(name: str, points: Sequence[Point]) -> Curve:
    at, less, low, high = ([point[i] for point in points] for i in range(4))
    return Curve(name, at, less, low, high)
