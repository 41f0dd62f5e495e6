"""Tables of `docs` from the output of `ones bench ... --json`: no number is copied by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ones.lab.bench.result import origin_sentence
from ones.lab.paper.sweep_results import markdown_table, sweeps_markdown

Row = Mapping[str, Any]
LARGE_MB = 200.0
MAX_OVERHEAD_PERCENT = 3.0  # at the upper end of the interval, with 2 workers

Result = Mapping[str, Any]  # output of `ones bench NAME --json`


def markdown(results: Sequence[Result]) -> str:
    """Tables of one benchmark, possibly run in several parts, with date, commit and load."""
    rows = [row for result in results for row in result["rows"]]
    return "\n\n".join([*TABLES[results[0]["bench"]](rows), *map(origin_sentence, results)])


def _rescale(rows: Sequence[Row]) -> Iterable[str]:
    """A line for each size and change, with a column for each rival."""
    rivals = [r for r in ("checkpoint", "zygote", "torchrun") if any(x["rival"] == r for x in rows)]
    lines = []
    for size, change in dict.fromkeys((row["parameter_mb"], row["change"]) for row in rows):
        same = [r for r in rows if (r["parameter_mb"], r["change"]) == (size, change)]
        by = {row["rival"]: row for row in reversed(same)}  # the first of several results counts
        ours = same[0]
        lines.append(
            [
                f"{size:g} MB", change, ours["n"],
                f"{_ms(ours['pause_ms'])} ({_ms(ours['pause_ms_low'])} to"
                f" {_ms(ours['pause_ms_high'])})",
                _ms(ours["agree_ms"]), _ms(ours["state_ms"]), _ms(ours["resume_ms"]),
                _ms(ours["background_feed_ms"]),
                _ms(ours["slowed_ms"]) if "slowed_ms" in ours else "",
                *(_beside(by.get(name)) for name in rivals),
                ours.get("load_average", ""),
            ]
        )  # fmt: skip
    yield markdown_table(
        ["parameters", "workers", "n", "pause ms (lowest to highest)", "agree", "state", "resume",
         "fed before, in the background", "steps before longer by",
         *(f"{name} ms (ratio)" for name in rivals), "load"],
        lines,
    )  # fmt: skip
    missed = [row for row in rows if row["ratio"] < wanted_ratio(row)]
    named = ", ".join(f"{r['case']} against {r['rival']} ({r['ratio']:g}x)" for r in missed)
    yield f"Missed: {named}." if missed else "Reached in every row."


def wanted_ratio(row: Row) -> float:
    """Goal: 30 times shorter than a checkpoint, 15 for large models; 3 times than a zygote."""
    if row["rival"] == "checkpoint":
        return 30.0 if row["parameter_mb"] < LARGE_MB else 15.0
    return 3.0 if row["rival"] == "zygote" else 1.0


def _beside(rival: Row | None) -> str:
    if rival is None:
        return ""
    ratio = rival["ratio"]
    return (
        f"{_ms(rival['rival_pause_ms'])} ({ratio:.1f}x)"
        if ratio < 10
        else (f"{_ms(rival['rival_pause_ms'])} ({ratio:,.0f}x)")
    )


def _overhead(rows: Sequence[Row]) -> Iterable[str]:
    yield markdown_table(
        ["model", "workers", "pairs", "CPU ms per step", "DDP", "more, CPU (95 %)",
         "more, wall (95 %)", "elastic µs per step", "load"],
        [
            [
                row["model"], row["workers"], row["n"],
                f"{row['step_ms']:.2f}", f"{row['rival_step_ms']:.2f}",
                _percent(row, "overhead_percent"), _percent(row, "wall_overhead_percent"),
                f"{row['elastic_us_per_step']:.0f}", row.get("load_average", ""),
            ]
            for row in rows
        ],
    )  # fmt: skip
    missed = [
        row
        for row in rows
        if row["workers"] == 2 and row["overhead_percent_high"] > MAX_OVERHEAD_PERCENT
    ]
    named = ", ".join(f"{row['model']} ({row['overhead_percent_high']:+.1f} %)" for row in missed)
    yield f"Missed at 2 workers: {named}." if missed else "Reached by every model at 2 workers."


def _convergence(rows: Sequence[Row]) -> Iterable[str]:
    yield markdown_table(
        ["workers x local batch", "reached it", "epochs", "x one worker"],
        [
            [
                row["case"], f"{row['reached']} of {row['n']}",
                f"{row['epochs_to_target']:.1f} ({row['epochs_to_target_low']:.0f} to"
                f" {row['epochs_to_target_high']:.0f})",
                f"{row['ratio']:.1f}",
            ]
            for row in rows
            if row["figure"] == "workers"
        ],
    )  # fmt: skip
    yield markdown_table(
        ["growth", "loss before", "highest loss after (lowest to highest)", "x steady",
         "epochs to recover", "accuracy at the end"],
        [
            [
                row["case"], _loss(row["loss_before"]),
                f"{_loss(row['peak_loss'])} ({_loss(row['peak_loss_low'])} to"
                f" {_loss(row['peak_loss_high'])})",
                "diverged" if row["ratio"] is None else f"{row['ratio']:.1f}",
                f"{row['epochs_to_recover']:.1f}", f"{100 * row['final_accuracy']:.1f} %",
            ]
            for row in rows
            if row["figure"] == "jump"
        ],
    )  # fmt: skip


def _fidelity(rows: Sequence[Row]) -> Iterable[str]:
    columns = {
        "trace": "trace", "case": "case", "runs": "runs", "n": "jobs",
        "mean_jct_seconds": "mean JCT s", "mean_jct_seconds_sd": "sd",
        "simulated_mean_jct_seconds": "simulated s", "mean_jct_error_percent": "error %",
        "mean_job_error_percent": "mean job error %", "max_job_error_percent": "max job error %",
        "rescales": "rescales", "simulated_rescales": "simulated", "preemptions": "preemptions",
        "restarts": "restarts", "losses": "lost workers", "load_average": "load",
    }  # fmt: skip
    lines = [
        ["-" if row[key] is None else row[key] for key in columns]
        for row in rows
        if "policy" in row
    ]
    yield markdown_table(list(columns.values()), lines)
    for row in rows:
        if row["case"] == "order":
            live, simulated = (" < ".join(row[f"{b}_order"]) for b in ("live", "simulated"))
            pairs = f"{row['pairs_in_order']} of {row['n']} pairs alike"
            yield f"Order of `{row['trace']}`, live: {live}; simulated: {simulated} ({pairs})."


def _control(rows: Sequence[Row]) -> Iterable[str]:
    """All keys of each row, because each case measures different values."""

    def measured(row: Row) -> str:
        return "; ".join(
            f"{key.replace('_', ' ')} {value:,}"
            for key, value in row.items()
            if key not in ("case", "policy") and value is not None
        )

    yield markdown_table(["case", "measured"], [[row["case"], measured(row)] for row in rows])


def _embed(rows: Sequence[Row]) -> Iterable[str]:
    keys = ["policy", "cost_seconds", "n", "mean_jct_seconds", "ratio", "median_jct_seconds",
            "p99_jct_seconds", "rescales", "preemptions", "policy_cpu_seconds"]  # fmt: skip
    yield markdown_table(
        ["policy", "s a change", "jobs", "mean s", "x ideal", "median s", "99 % within s",
         "rescales", "preemptions", "policy CPU s"],
        [["" if row[key] is None else row[key] for key in keys] for row in rows],
    )  # fmt: skip


def _scale(rows: Sequence[Row]) -> Iterable[str]:
    crowds = [row for row in rows if "workers" in row]
    if crowds:
        yield markdown_table(
            ["workers (jobs)", "all train after s", "CPU % while they wait",
             "reports/s at their pace", "acknowledged ms (p99)", "CPU %", "reports/s at most",
             "orders to a job ms (slowest)", "to the wide job ms", "peak MB", "load"],
            [
                [
                    f"{row['workers']:,} ({row['jobs']:,})", f"{row['settled_seconds']:.1f}",
                    f"{row['waiting_cpu_percent']:.1f}",
                    f"{row['paced_reports_per_second']:,.0f} of"
                    f" {row['paced_offered_per_second']:,.0f}",
                    f"{_ms(row['paced_ack_ms'])} ({_ms(row['paced_ack_p99_ms'])})",
                    f"{row['paced_cpu_percent']:.0f}", f"{row['reports_per_second']:,.0f}",
                    f"{_ms(row['plan_fanout_ms'])} ({_ms(row['plan_fanout_max_ms'])})",
                    f"{_ms(row['wide_fanout_ms'])} ({row['wide_workers']:,} workers)",
                    f"{row['peak_mb']:.0f}", row["load_average"],
                ]
                for row in crowds
            ],
        )  # fmt: skip
    on_ray = [row for row in rows if "nodes" in row]
    if on_ray:
        yield markdown_table(
            ["Ray", "nodes up after s", "slots after s", "decision to running job s (longest)",
             "rescales", "decision to new group s (longest)", "pause s (longest)",
             "controller CPU %, MB", "bridge CPU %, MB", "load"],
            [
                [
                    row["case"], row["cluster_seconds"], row["slots_seconds"],
                    _middle(row, "decision_to_worker_seconds"), row["rescales"],
                    _middle(row, "decision_to_rescaled_seconds"), _middle(row, "pause_seconds"),
                    f"{row['controller_cpu_percent']}, {row['controller_mb']:.0f}",
                    f"{row['bridge_cpu_percent']}, {row['bridge_mb']:.0f}", row["load_average"],
                ]
                for row in on_ray
            ],
        )  # fmt: skip


def _middle(row: Row, key: str) -> str:
    return f"{row[key]:.2f} ({row[f'{key}_max']:.2f})" if key in row else ""


TABLES: Mapping[str, Callable[[Sequence[Row]], Iterable[str]]] = {
    "rescale": _rescale,
    "overhead": _overhead,
    "convergence": _convergence,
    "fidelity": _fidelity,
    "control": _control,
    "sweeps": sweeps_markdown,
    "embed": _embed,
    "scale": _scale,
}


def _ms(value: float) -> str:
    """
    >>> _ms(0.23), _ms(17.4), _ms(5206.3)
    ('0.2', '17', '5,206')
    """
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def _loss(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.3f}"


def _percent(row: Row, key: str) -> str:
    return f"{row[key]:+.1f} % ({row[f'{key}_low']:+.1f} to {row[f'{key}_high']:+.1f})"
