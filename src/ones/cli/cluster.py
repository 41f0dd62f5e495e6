"""`ones cluster`: nodes, GPUs and the jobs on them; drain and undrain."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from ones.cli.audit import moment_of
from ones.cli.client import connect
from ones.cli.options import Json, StateDirectory
from ones.cli.output import print_json, print_table, say
from ones.cli.terminal import tell
from ones.cli.words import duration, moment

PLACE = typer.Argument(help="A node, or one GPU as NODE/INDEX.", metavar="PLACE")

cluster = typer.Typer(invoke_without_command=True)


@cluster.callback()
def show(
    context: typer.Context,
    state: StateDirectory = None,
    json: Json = False,
) -> None:
    """Show nodes and GPUs: their state, their jobs, and why a GPU is not used.

    Example: ones cluster
    """
    if context.invoked_subcommand is not None:
        return
    found = connect(state).get("/api/cluster")
    if json:
        print_json(found)
        return
    print_table(None, ["node", "GPUs", "in use", "state", "why"], _nodes(found))
    grouped = any(slot["group"] is not None for slot in found["slots"])
    rows = [
        (
            slot["id"],
            slot["name"],
            slot["state"],
            slot["job"] or ("other user" if slot["owner"] else None),
            slot["owner"],
            slot["batch"] or None,
            slot["aside"],
            *([slot["group"]] if grouped else []),
        )
        for slot in found["slots"]
    ]
    heads = ["GPU", "model", "state", "job", "owner", "batch", "why not used"]
    print_table(None, [*heads, *(["group"] if grouped else [])], rows)
    for node, why in sorted(found["unfit"].items()):
        tell(f"{node} cannot be used: {why}")
    if auto := found["slurm_auto"]:
        tell(auto_line(auto))
    run = "1 job runs" if found["running"] == 1 else f"{found['running']} jobs run"
    wait = "1 waits" if found["waiting"] == 1 else f"{found['waiting']} wait"
    tell(f"{run}, {wait}; policy {found['policy']}")


def auto_line(auto: dict[str, Any]) -> str:
    """What `ones slurm auto` has asked for."""
    parts = [f"{auto['nodes']} of at most {auto['max_nodes']} nodes, {auto['time']} each"]
    for what in ("running", "pending"):
        if auto[what]:
            parts.append(f"{what}: {', '.join(auto[what])}")
    if auto["problem"]:
        parts.append(f"{auto['problem']}; next attempt in {duration(auto['retry_seconds'])}")
    return "Slurm allocations: " + "; ".join(parts)


def _nodes(found: dict[str, Any]) -> list[list[object]]:
    held: dict[str, int] = {}
    for slot in found["slots"]:
        held[slot["node"]] = held.get(slot["node"], 0) + (slot["owner"] is not None)
    return [
        [n["name"], n["gpus"], held.get(n["name"], 0), n["state"], n.get("reason") or None]
        for n in found["nodes"]
    ]


@cluster.command()
def drain(
    place: Annotated[str, PLACE],
    reason: Annotated[
        str | None, typer.Option("--reason", "-r", help="Why; `ones cluster` shows it.")
    ] = None,
    state: StateDirectory = None,
    json: Json = False,
) -> None:
    """Place no new workers on a node or a GPU; present workers may stay.

    Example: ones cluster drain local/3 --reason "fan replaced on Monday"
    """
    found = connect(state).post("/api/cluster/drain", {"place": place, "reason": reason})
    if json:
        print_json(found)
        return
    jobs = sorted({s["job"] for s in found["slots"] if s["job"] and _is_in(s, place)})
    say(f"{place}: draining" + (f"; jobs still there: {', '.join(jobs)}" if jobs else ""))


@cluster.command()
def undrain(
    place: Annotated[str, PLACE],
    state: StateDirectory = None,
    json: Json = False,
) -> None:
    """Use a node or a GPU again, also a GPU that was cordoned because workers died on it.

    Example: ones cluster undrain local/3
    """
    found = connect(state).post("/api/cluster/undrain", {"place": place})
    if json:
        print_json(found)
        return
    say(f"{place}: {_still_out(found, place) or 'in use again'}")


def _still_out(found: dict[str, Any], place: str) -> str:
    """What stays out of service below the place, why, and what to do; empty: nothing."""
    slots = [slot for slot in found["slots"] if _is_in(slot, place)]
    out = {slot["id"]: slot["aside"] for slot in slots if slot["aside"]}
    if place in out:
        return f"still out of service: {out[place]}"
    if out:
        named = ", ".join(f"{gpu} ({why})" for gpu, why in out.items())
        return f"in use again, except {named}. For one GPU: ones cluster undrain NODE/INDEX"
    node = slots[0]["node"] if slots else place
    states = {each["name"]: each["state"] for each in found["nodes"]}
    if node != place and states.get(node) == "draining":
        return f"still out of service: its node is draining; ones cluster undrain {node}"
    return ""


def _is_in(slot: dict[str, Any], place: str) -> bool:
    return place in (slot["id"], slot["node"])


@cluster.command()
def history(
    since: Annotated[
        str, typer.Option(metavar="TIME", help="From this time on: 6h, 7d, or 2026-01-31.")
    ] = "24h",
    rows: Annotated[
        int,
        typer.Option(
            "--rows", "-n", min=2, max=5000, help="Maximum number of rows, of equal time."
        ),
    ] = 24,
    state: StateDirectory = None,
    json: Json = False,
) -> None:
    """Show the use of the cluster over time: GPUs used, waiting jobs, decisions per hour.

    Example: ones cluster history --since 7d --rows 28
    """
    at = moment_of(since, time.time())
    found = connect(state).get("/api/history", since=at, points=rows)
    if json:
        print_json(found)
        return
    if not found["points"]:
        say("nothing was counted in this time")
        return
    shown = [
        (
            moment(point["at"]),
            f"{point['gpus_used']:.1f} of {point['gpus']:.1f}",
            None if point["utilisation"] is None else f"{100 * point['utilisation']:.0f} %",
            round(point["running"], 1),
            round(point["waiting"], 1),
            point["most_waiting"],
            round(point["decisions_per_hour"], 1),
        )
        for point in found["points"]
    ]
    heads = ["from", "GPUs used", "allocated", "running", "waiting", "most", "decisions/h"]
    print_table(None, heads, shown)
    tell(f"means of {duration(found['step_seconds'])}; gaps: no controller ran")
