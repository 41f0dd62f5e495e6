"""Renew the measured tables of these pages, and what `ones paper` shows, from results.

    python -m docs.measured rescale.json overhead.json convergence.json

Each file is what `ones bench NAME --json` printed, or `sweeps.json` of `ones paper sweeps`; several
of one benchmark (sizes run apart) make one table. A result of `ones bench rescale --paper`, by its
sizes, gets a table of its own and goes, as one of `convergence` does, into the package: `ones
paper` shows it. Nothing is copied by hand.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ones.lab.bench_rescale import Model, paper_sizes
from ones.lab.bench_tables import TABLES, markdown
from ones.lab.paper.measured import HOME

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
CARRIED = {"paper-rescale": "rescale.json", "convergence": "convergence.json"}

Frame = dict[str, Any]


def main(files: Sequence[str]) -> None:
    found: dict[str, list[Frame]] = {}
    for file in files:
        frame = json.loads(Path(file).read_text())
        if frame.get("bench") not in TABLES:
            raise SystemExit(f"{file}: is no result of {', '.join(TABLES)}")
        found.setdefault(_table_of(frame), []).append(frame)
    for name, frames in found.items():
        page = HERE / PAGES[name]
        page.write_text(renewed(page.read_text(), name, markdown(frames)))
        print(f"{page.name}: {name}")
        if name in CARRIED:
            HOME.mkdir(exist_ok=True)
            rows = [row for frame in frames for row in frame["rows"]]
            (HOME / CARRIED[name]).write_text(written({**frames[-1], "rows": rows}))
            print(f"{HOME.name}/{CARRIED[name]}: {len(rows)} rows")


def _table_of(frame: Frame) -> str:
    """A run at the sizes of the paper's models is told by its sizes."""
    sizes = {round(Model.of(size).megabytes, 1) for size in paper_sizes()}
    of_paper = frame["bench"] == "rescale" and {r["parameter_mb"] for r in frame["rows"]} <= sizes
    return "paper-rescale" if of_paper else str(frame["bench"])


def renewed(text: str, name: str, table: str) -> str:
    """The text with another table between its marks.

    >>> renewed("a<!-- x -->old<!-- /x -->b", "x", "new")
    'a<!-- x -->\\nnew\\n<!-- /x -->b'
    """
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, found, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not (found and ended):
        raise SystemExit(f"the page has no {begin} ... {end}")
    return f"{before}{begin}\n{table}\n{end}{after}"


def written(frame: Frame) -> str:
    """JSON with a row on each line: changes are easy to see."""
    head = [f" {json.dumps(k)}: {json.dumps(v)}" for k, v in frame.items() if k != "rows"]
    rows = ",\n  ".join(json.dumps(row) for row in frame["rows"])
    return "{\n" + ",\n".join([*head, f' "rows": [\n  {rows}\n ]']) + "\n}\n"


if __name__ == "__main__":
    main(sys.argv[1:])
