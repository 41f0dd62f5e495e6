"""Updates the measured tables of the pages, and the measurements of `ones paper`, from results.

    python -m docs.measured rescale.json overhead.json convergence.json

Each file is the output of `ones bench NAME --json`, or `sweeps.json` of `ones paper sweeps`. All
files of one benchmark (with different sizes) make one table. Results of `ones bench rescale
--paper` (recognised by their sizes) have their own table. They and those of `convergence` are also
copied into the package, where `ones paper` reads them.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from docs.bench_tables import TABLES, markdown
from ones.lab.bench.elastic.rescale import RescaleModel, paper_sizes
from ones.lab.paper.measurements import HOME

HERE = Path(__file__).parent
PAGES = {
    "rescale": "rescaling.md",
    "paper-rescale": "rescaling.md",
    "overhead": "rescaling.md",
    "convergence": "convergence.md",
    "fidelity": "fidelity.md",
    "control": "operations.md",
    "sweeps": "paper.md",
    "embed": "guides/evaluate.md",
    "scale": "operations.md",
}
INCLUDED = {"paper-rescale": "rescale.json", "convergence": "convergence.json"}

Result = dict[str, Any]


def main(files: Sequence[str]) -> None:
    tables: dict[str, list[Result]] = {}
    for file in files:
        result = json.loads(Path(file).read_text())
        if result.get("bench") not in TABLES:
            raise SystemExit(f"{file}: not a result of {', '.join(TABLES)}")
        tables.setdefault(_table_of(result), []).append(result)
    for name, results in tables.items():
        page = HERE / PAGES[name]
        page.write_text(replace_table(page.read_text(), name, wrap_prose(markdown(results))))
        print(f"{page.name}: {name}")
        if name in INCLUDED:
            HOME.mkdir(exist_ok=True)
            rows = [row for result in results for row in result["rows"]]
            (HOME / INCLUDED[name]).write_text(result_json({**results[-1], "rows": rows}))
            print(f"{HOME.name}/{INCLUDED[name]}: {len(rows)} rows")


def _table_of(result: Result) -> str:
    """Name of the table; a run at the sizes of the paper's models has its own."""
    sizes = {round(RescaleModel.of(size).megabytes, 1) for size in paper_sizes()}
    of_paper = result["bench"] == "rescale" and {r["parameter_mb"] for r in result["rows"]} <= sizes
    return "paper-rescale" if of_paper else str(result["bench"])


def replace_table(text: str, name: str, table: str) -> str:
    """The text with a new table between its marks.

    >>> replace_table("a<!-- x -->old<!-- /x -->b", "x", "new")
    'a<!-- x -->\\nnew\\n<!-- /x -->b'
    """
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, tables, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not (tables and ended):
        raise SystemExit(f"the page has no {begin} ... {end}")
    return f"{before}{begin}\n{table}\n{end}{after}"


def wrap_prose(text: str, width: int = 120) -> str:
    """The text with long lines wrapped, except tables, headings and images.

    >>> wrap_prose("| a table |\\na sentence", width=8)
    '| a table |\\na\\nsentence'
    """
    return "\n".join(
        line if line.startswith(("|", "#", "![")) else textwrap.fill(line, width)
        for line in text.splitlines()
    )


def result_json(result: Result) -> str:
    """JSON with one row per line, so that differences are easy to see."""
    head = [f" {json.dumps(k)}: {json.dumps(v)}" for k, v in result.items() if k != "rows"]
    rows = ",\n  ".join(json.dumps(row) for row in result["rows"])
    return "{\n" + ",\n".join([*head, f' "rows": [\n  {rows}\n ]']) + "\n}\n"


if __name__ == "__main__":
    main(sys.argv[1:])
