"""Output of benchmarks: rows as JSON, or some of their keys as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ones.cli.output import print_json, print_table

Rows = list[dict[str, Any]]


def print_rows_json(name: str, rows: Rows) -> None:
    from ones.lab.bench.result import bench_result

    print_json(bench_result(name, rows))


def print_rows(name: str, rows: Rows, json: bool, title: str, columns: Mapping[str, str]) -> None:
    """Print rows as JSON or as a table. `columns`: key -> heading."""
    if json:
        print_rows_json(name, rows)
    else:
        table = [[row.get(key) for key in columns] for row in rows]
        print_table(title, list(columns.values()), table)
