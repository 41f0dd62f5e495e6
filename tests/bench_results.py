"""Results of benchmarks, made up, for tests of tables and pages."""

from __future__ import annotations

from typing import Any


def pause(size: float, change: str, rival: str, ours: float, theirs: float) -> dict[str, Any]:
    parts = ("agree", "connect", "state", "resume", "background_connect", "background_feed")
    return {
        "case": f"{size:g} MB {change}", "parameter_mb": size, "change": change, "n": 2,
        "pause_ms": ours, "pause_ms_low": ours / 2, "pause_ms_high": 2 * ours,
        **{f"{part}_ms": 1.0 for part in parts}, "slowed_ms": 3.0,
        "rival": rival, "rival_pause_ms": theirs, "ratio": theirs / ours, "load_average": 0.5,
    }  # fmt: skip


PAUSES = [
    pause(25.4, "1->2", "checkpoint", 40.0, 8000.0),
    pause(25.4, "1->2", "zygote", 40.0, 300.0),
    pause(537.0, "1->2", "checkpoint", 400.0, 26000.0),
]


def result(bench: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"bench": bench, "commit": "abc1234", "load_average": 0.3, "cores": 2,
            "measured_at": "2026-01-02 03:04 UTC", "rows": rows}  # fmt: skip
