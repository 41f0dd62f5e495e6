"""The trade-off of a setting: mean against the slowest jobs, with a point for each value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ones.report.charts import Axis, Curve, Painter, curves

Rows = Sequence[Mapping[str, Any]]

#: minimum number of variants of a policy that make a line
MIN_POINTS = 3


def has_frontier(rows: Rows) -> bool:
    """Does a policy have enough variants in the rows of one setting?"""
    return any(len(found) >= MIN_POINTS for found in _by_policy(rows).values())


def frontier(title: str, rows: Rows) -> Painter:
    """A line through the variants of a policy in the order of the requests; others are points."""
    lines = []
    for policy, found in _by_policy(rows).items():
        whole = [found] if len(found) >= MIN_POINTS else [[row] for row in found]
        for points in whole:
            line = len(points) > 1
            lines.append(
                Curve(
                    policy if line else points[0]["label"],
                    [row["mean_jct"] for row in points],
                    [row["pooled_p99_jct"] for row in points],
                    dots=True,
                    names=[short(row["label"]) for row in points] if line else (),
                )
            )
    return curves(title, Axis("mean completion (s)"), Axis("99 % of jobs within (s)"), lines)


def short(label: str) -> str:
    """
    >>> short("ones:ageing-4"), short("ones")
    ('ageing-4', 'ones')
    """
    return label.partition(":")[2] or label


def _by_policy(rows: Rows) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["mean_jct"] is not None:
            found.setdefault(row["policy"], []).append(row)
    return found
