"""`ones logs`: the output of a job."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Annotated, Any

import typer

from ones.cli.audit import moment_of
from ones.cli.client import Client, connect, of_job
from ones.cli.options import StateDirectory
from ones.cli.output import print_json, say
from ones.cli.terminal import OutputFilter, visible
from ones.errors import UnknownNameError, UserError

POLL_SECONDS = 0.3
#: bytes that are read first for `--tail`, and at most (the longest response)
TAIL_BYTES, MOST_TAIL_BYTES = 16_384, 1 << 20
TOGETHER_SECONDS = 10.0  # workers that exit within this time ended together


def logs(
    job: Annotated[str, typer.Argument(help="Job id.")],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue with new output until the job ends.")
    ] = False,
    worker: Annotated[
        str | None, typer.Option("--worker", "-w", help="Only the worker on this slot.")
    ] = None,
    tail: Annotated[
        int | None,
        typer.Option("--tail", "-n", help="Only this number of last lines of each process."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only processes that ran since: 30m, 2h, 2026-01-31."),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Keep all escape sequences, also on a terminal.")
    ] = False,
    state: StateDirectory = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the output of each process so far as JSON.")
    ] = False,
) -> None:
    """Print the output of a job's processes, in the order of their ends; the main worker is last.

    A terminal gets text and colours only; a file or a pipe gets every byte.

    Example: ones logs -f digits-1
    """
    if tail is not None and tail < 1:
        raise UserError(f"--tail: {tail} is not at least 1")
    client = connect(state)
    chosen = _Chosen(worker, 0.0 if since is None else moment_of(since, time.time()))
    if json:
        if follow:
            raise UserError("--json: not together with --follow")
        print_json(_all_output(client, job, chosen, tail))
        return
    try:
        follow_job(client, job, chosen, tail=tail, once=not follow, raw=raw)
    except KeyboardInterrupt:
        say(f"detached; {job} continues")


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The processes of which the output is printed."""

    worker: str | None = None  # only those on this slot
    since: float = 0.0  # only those that ran at this time or later

    def accepts(self, launch: Mapping[str, Any]) -> bool:
        here = self.worker is None or self.worker in launch["slots"]
        return here and (launch["ended_at"] is None or launch["ended_at"] >= self.since)


ALL = _Chosen()


def _begin_of_tail(client: Client, path: str, lines: int) -> int:
    """The offset at which the last lines of an output begin."""
    size = TAIL_BYTES
    while True:
        data, headers = client.bytes(path, offset=-size)
        begins = int(headers["x-offset"])
        ends = data.rfind(b"\n", 0, len(data) - 1)
        for _ in range(lines - 1):
            ends = data.rfind(b"\n", 0, max(ends, 0)) if ends >= 0 else -1
        if ends >= 0 or not begins or size >= MOST_TAIL_BYTES or len(data) < size:
            return begins + ends + 1
        size *= 8


def _all_output(
    client: Client, job: str, chosen: _Chosen, tail: int | None
) -> list[dict[str, Any]]:
    found = []
    for launch in by_end(client.get(of_job(job, "launches"))):
        if not chosen.accepts(launch):
            continue
        path = of_job(job, "launches", launch["id"], "log")
        text, first = b"", None
        offset = 0 if tail is None else _begin_of_tail(client, path, tail)
        while True:
            data, headers = client.bytes(path, offset=offset)
            first = int(headers["x-offset"]) if first is None else first
            text += data
            if not data or int(headers["x-next"]) == offset:
                break
            offset = int(headers["x-next"])
        shown = {name: launch[name] for name in ("id", "slots", "alive", "exit_code")}
        found.append({**shown, "offset": first, "text": text.decode(errors="replace")})
    return found


def by_end(launches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The processes, which are in the order of their start, in the order of their ends.

    Those that still run, or ended with the last one, come last. The oldest of them is the last of
    all: it is the main worker, and its last lines are the job's.

    >>> ends = {"a": 90.0, "b": 40.0, "c": 91.0, "d": None}
    >>> [l["id"] for l in by_end([{"id": i, "ended_at": at} for i, at in ends.items()])]
    ['b', 'a', 'c', 'd']
    >>> [l["id"] for l in by_end([{"id": i, "ended_at": ends[i]} for i in "abc"])]
    ['b', 'c', 'a']
    """

    def ended_at(launch: dict[str, Any]) -> float:
        return inf if launch["ended_at"] is None else float(launch["ended_at"])

    last = max(map(ended_at, launches), default=0.0) - TOGETHER_SECONDS
    earlier = [launch for launch in launches if ended_at(launch) < last]
    return sorted(earlier, key=ended_at) + [x for x in reversed(launches) if ended_at(x) >= last]


def follow_job(
    client: Client,
    job: str,
    chosen: _Chosen = ALL,
    *,
    tail: int | None = None,
    once: bool = False,
    raw: bool = False,
) -> None:
    """Print output until the job has ended; with `once`, only the output so far.

    `raw`: keep all escape sequences, also on a terminal.
    """
    offsets: dict[str, int] = {}
    over: set[str] = set()
    lines = _Lines(filtered=sys.stdout.isatty() and not raw)
    explained = False  # whether the reason for missing output was printed
    while True:
        card = client.get(of_job(job))
        ended = once or card["ended_at"] is not None
        launches = by_end(client.get(of_job(job, "launches")))
        known = {slot for launch in launches for slot in launch["slots"]}
        if known and chosen.worker is not None and chosen.worker not in known and ended:
            raise UnknownNameError(f"worker of {job}", chosen.worker, known)
        some = bool(launches)
        launches = [launch for launch in launches if chosen.accepts(launch)]
        if not launches and not explained and (once or card["state"] == "waiting" or ended):
            explained = True
            say(f"no process of {job} ran since then" if some else _why_no_output(card))
        open_ones = [launch for launch in launches if launch["id"] not in over]
        named = len(launches) > 1
        for launch in open_ones:
            id = launch["id"]
            offset = offsets.get(id)
            if offset is None:
                path = of_job(job, "launches", id, "log")
                offset = 0 if tail is None else _begin_of_tail(client, path, tail)
            offsets[id], done = _print_more(client, job, launch, offset, lines, named=named)
            if done or ended:
                lines.end(id)
            if done:
                over.add(id)
        if ended and (once or all(launch["id"] in over for launch in launches)):
            if launches and not lines.any:
                say(f"{job} has printed nothing")
            return
        time.sleep(POLL_SECONDS)


def _why_no_output(card: dict[str, Any]) -> str:
    """The reason why a job has no output."""
    job, over = card["id"], card["ended_at"] is not None
    if card["started_at"] is None:
        why = card["message"] if over else card["note"]
        return f"{job} has not started: {card['state']}" + (f", {why}" if why else "")
    return f"the output of {job} has been removed" if over else f"{job}: {card['state']}"


class _Lines:
    """Prints output of several processes line by line, each line with a mark of its process.

    An incomplete line waits for its rest, so lines of different processes do not mix.
    """

    def __init__(self, *, filtered: bool = False) -> None:
        self._filtered = filtered
        self._filters: dict[str, OutputFilter] = {}
        self._rests: dict[str, tuple[bytes, bytes]] = {}  # mark and text of each process
        self.any = False

    def write(self, process: str, mark: bytes, data: bytes) -> None:
        self.any = True
        if self._filtered:
            data = self._filters.setdefault(process, OutputFilter()).feed(data)
            if not data:
                return
        if not mark:
            self._put(data)
            return
        whole = self._rests.pop(process, (mark, b""))[1] + data
        lines = whole.splitlines(keepends=True)
        if not lines[-1].endswith((b"\n", b"\r")):
            self._rests[process] = (mark, lines.pop())
        self._put(b"".join(mark + line for line in lines))

    def end(self, process: str) -> None:
        mark, rest = self._rests.pop(process, (b"", b""))
        if process in self._filters:
            rest += self._filters.pop(process).end()
        if rest:
            self._put(mark + rest + b"\n")

    def _put(self, data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def _print_more(
    client: Client, job: str, launch: dict[str, Any], offset: int, lines: _Lines, *, named: bool
) -> tuple[int, bool]:
    mark = f"[{visible(','.join(launch['slots']))}] ".encode() if named else b""
    while True:
        path = of_job(job, "launches", launch["id"], "log")
        data, headers = client.bytes(path, offset=offset)
        begins = int(headers["x-offset"])
        if 0 <= offset < begins:
            say(f"({begins - offset} bytes of older output were dropped)")
        if data:
            lines.write(launch["id"], mark, data)
        offset = int(headers["x-next"])
        if not data or headers["x-over"] == "true":
            return offset, headers["x-over"] == "true"
