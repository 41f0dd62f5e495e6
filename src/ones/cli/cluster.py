"""`ones cluster`: nodes and GPUs, who is where, and which of them are not to be used."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ones.cli.client import connect
from ones.cli.options import Json, StateDirectory
from ones.cli.output import print_json, print_table, say
from ones.cli.terminal import tell

PLACE = typer.Argument(help="A node, or one GPU as NODE/INDEX.", metavar="PLACE")

cluster = typer.Typer(invoke_without_command=True)


@cluster.callback()
def show(
    context: typer.Context,
    state: StateDirectory = None,
    json: Json = False,
) -> None:
    """Show nodes and GPUs: their state, who is where, and why one is not used.

    Example: ones cluster
    """
    if context.invoked_subcommand is not None:
        return
    found = connect(state).get("/api/cluster")
    if json:
        print_json(found)
        return
    print_table(None, ["node", "GPUs", "in use", "state"], list(map(tuple, _nodes(found))))
    grouped = any(slot["group"] is not None for slot in found["slots"])
    rows = [
        (
            slot["id"],
            slot["name"],
            slot["state"],
            slot["job"] or ("somebody's" if slot["owner"] else None),
            slot["owner"],
            slot["batch"] or None,
            slot["aside"],
            *([slot["group"]] if grouped else []),
        )
        for slot in found["slots"]
    ]
    heads = ["GPU", "what", "state", "job", "owner", "batch", "why not used"]
    print_table(None, [*heads, *(["group"] if grouped else [])], rows)
    for node, why in sorted(found["unfit"].items()):
        tell(f"{node} cannot be used: {why}")
    run = "1 job runs" if found["running"] == 1 else f"{found['running']} jobs run"
    wait = "1 waits" if found["waiting"] == 1 else f"{found['waiting']} wait"
    tell(f"{run}, {wait}; policy {found['policy']}")


def _nodes(found: dict[str, Any]) -> list[list[object]]:
    held: dict[str, int] = {}
    for slot in found["slots"]:
        held[slot["node"]] = held.get(slot["node"], 0) + (slot["owner"] is not None)
    return [[n["name"], n["gpus"], held.get(n["name"], 0), n["state"]] for n in found["nodes"]]


@cluster.command()
def drain(
    place: Annotated[str, PLACE],
    state: StateDirectory = None,
    json: Json = False,
) -> None:
    """Let nobody new come to a node or a GPU; who is there may stay.

    Example: ones cluster drain local/3
    """
    found = connect(state).post("/api/cluster/drain", {"place": place})
    if json:
        print_json(found)
        return
    there = sorted({s["job"] for s in found["slots"] if s["job"] and _is_in(s, place)})
    say(f"{place}: nobody new comes" + (f"; still there: {', '.join(there)}" if there else ""))


@cluster.command()
def undrain(
    place: Annotated[str, PLACE],
    state: StateDirectory = None,
    json: Json = False,
) -> None:
    """Use a node or a GPU again, also one that was set aside because workers died there.

    Example: ones cluster undrain local/3
    """
    found = connect(state).post("/api/cluster/undrain", {"place": place})
    if json:
        print_json(found)
        return
    why = [s["aside"] for s in found["slots"] if s["id"] == place and s["aside"]]
    say(f"{place}: {why[0]}: not used yet" if why else f"{place}: in use again")


def _is_in(slot: dict[str, Any], place: str) -> bool:
    return place in (slot["id"], slot["node"])
