"""Replays the last hours of a service's jobs under another policy: `python -m ones.lab.whatif`.

A process of its own at the lowest priority, started by the controller (`control.whatif`). It reads
a request as one line of JSON from standard input and writes lines of JSON: progress, then the
result or the problem. It ends when standard input is closed, so it does not outlive a killed
controller.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from statistics import fmean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ones.core.state import State
    from ones.runlog import Header
    from ones.workload.recent import RecentJob, RecentJobs

LOWEST_PRIORITY = 19
SEED = 0  # of noise and policy
CONTROLLER_GONE = 3  # exit code


def main() -> int:
    os.nice(LOWEST_PRIORITY)
    request = json.loads(sys.stdin.buffer.readline())
    limit = int(request["cpu_seconds"])
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    threading.Thread(target=_end_with_controller, daemon=True).start()
    from ones.errors import OnesError

    try:
        result = what_if(request, lambda done, total: _write({"done": done, "total": total}))
    except OnesError as problem:
        _write({"problem": str(problem)})
        return 1
    _write({"result": result})
    return 0


def _end_with_controller() -> None:
    while os.read(0, 4096):
        pass
    os._exit(CONTROLLER_GONE)


def _write(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def what_if(request: dict[str, Any], progress: Callable[[int, int], None]) -> dict[str, Any]:
    """The result of a request: `database`, `policy`, `since`, `until`."""
    from ones.control.archive import log_since
    from ones.control.database import open_engine
    from ones.workload.recent import recent_jobs

    engine = open_engine(request["database"])
    try:
        with engine.connect() as connection:
            header, entries = log_since(connection, request["since"])
            found = recent_jobs(header, entries, since=request["since"], until=request["until"])
    finally:
        engine.dispose()
    total = 2 * len(found.jobs)
    progress(0, total)
    then = header.policy
    ran = _simulated(found, header, then, header.settings, lambda n: progress(n, total))
    n = len(found.jobs)
    other = _simulated(found, header, request["policy"], {}, lambda m: progress(n + m, total))
    progress(total, total)
    return _result(found, header, request["policy"], ran, other)


def _simulated(
    found: RecentJobs,
    header: Header,
    policy: str,
    settings: Any,  # noqa: ANN401
    progress: Callable[[int], None],
) -> State:
    """The jobs under a policy, as the service would have run them: the state at the end."""
    from ones.policies import create
    from ones.sim.oracle import oracle_of
    from ones.sim.run import Simulator

    trace = found.trace
    widest = max(node.gpus for node in found.cluster.nodes.values())
    truth = oracle_of(trace, seed=SEED, gpus_per_node=widest)
    made = create(policy, seed=SEED, oracle=truth, **settings)
    simulator = Simulator(
        trace,
        found.cluster,
        made,
        mechanism="elastic",
        seed=SEED,
        in_place=header.in_place,
    )
    return simulator.run(progress=lambda state: progress(len(state.ended))).state


def _result(
    found: RecentJobs, header: Header, policy: str, ran: State, other: State
) -> dict[str, Any]:
    rows = [
        {
            "job": job.entry.job.id,
            "owner": job.entry.job.owner,
            "submitted_at": job.submitted_at,
            "began_before": job.began_before,
            "assumed": job.assumed,
            "happened": None
            if job.completion_seconds is None
            else {"completion_seconds": job.completion_seconds,
                  "waiting_seconds": job.waiting_seconds},
            "simulated": times_of(job, ran),
            "whatif": times_of(job, other),
        }
        for job in found.jobs
    ]  # fmt: skip
    return {
        "policy": policy,
        "policy_then": header.policy,
        "since": found.since,
        "until": found.until,
        "gpus": found.cluster.n_gpus,
        "jobs": rows,
        "left_out": dict(found.left_out),
        "assumptions": [
            *_assumptions(found, header, policy),
            *_not_run(rows, "simulated", header.policy),
            *_not_run(rows, "whatif", policy),
        ],
        **{name: means_of(rows, name) for name in ("happened", "simulated", "whatif")},
    }


def times_of(job: RecentJob, state: State) -> dict[str, float] | None:
    """Times of a job in a simulation; None: it did not end as recorded, but was refused or never
    started."""
    outcome = state.ended.get(job.entry.job.id)
    if outcome is None or outcome.reason is not job.end:
        return None
    return {
        "completion_seconds": outcome.completion_seconds,
        "waiting_seconds": outcome.queue_seconds,
    }


def means_of(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Means over the jobs that have ended in all three; of a simulation also over all jobs."""
    names = ("happened", "simulated", "whatif")
    both = [row[name] for row in rows if all(row[each] is not None for each in names)]
    every = [row[name] for row in rows if row[name] is not None]
    is_whole = len(every) == len(rows)

    def mean(times: list[dict[str, float]], key: str) -> float | None:
        return fmean(each[key] for each in times) if times else None

    return {
        "jobs": len(both),
        "mean_completion_seconds": mean(both, "completion_seconds"),
        "mean_waiting_seconds": mean(both, "waiting_seconds"),
        "mean_completion_of_all": mean(every, "completion_seconds") if is_whole else None,
        "mean_waiting_of_all": mean(every, "waiting_seconds") if is_whole else None,
    }


def _assumptions(found: RecentJobs, header: Header, policy: str) -> Iterator[str]:
    """What the replay assumes, in sentences."""
    from collections import Counter

    from ones.policies import limits_live
    from ones.workload.recent import BY_KIND, DECLARED, NO_END

    yield (
        f"The cluster is as it is now, {found.cluster.n_gpus} GPUs; lost nodes and workers, holds,"
        " limits of users and fair share are not replayed; priorities are the last ones."
    )
    yield (
        "A job trains as it reported: step times as measured, other sizes and batches by a fit to"
        " them; accuracy and loss by its progress."
    )
    assumed = Counter(job.assumed for job in found.jobs if job.assumed)
    for length in (DECLARED, NO_END, BY_KIND):
        if n := assumed[length]:
            many = "1 job has" if n == 1 else f"{n} jobs have"
            yield f"{many} not ended; the length is assumed: {length}."
    if n := sum(job.fixed for job in found.jobs):
        many = "1 job" if n == 1 else f"{n} jobs"
        yield f"{many} without reports: the same time on the same number of GPUs."
    if n := sum(job.began_before for job in found.jobs):
        many = "1 job" if n == 1 else f"{n} jobs"
        yield (
            f"{many} of earlier times with the rest of the work, counted in whole epochs; each"
            " starts anew when the window begins."
        )
    if header.changed_at is not None and header.changed_at > found.since:
        yield (
            "The policy or its settings were changed in this time; the simulation of what happened"
            f" uses the present ones of {header.policy}."
        )
    if _knows_lengths(policy):
        yield (
            f"{policy} knows how long each job will take, which no policy knows in the service:"
            " a bound, not a choice."
        )
    if limits := limits_live(policy):
        yield f"{policy} does this only in simulations: {limits}."
    for reason, n in found.left_out.items():
        yield f"Left out: {n} {'job' if n == 1 else 'jobs'}: {reason}."


def _not_run(rows: list[dict[str, Any]], name: str, policy: str) -> Iterator[str]:
    if n := sum(row[name] is None for row in rows):
        many = "1 job" if n == 1 else f"{n} jobs"
        yield f"{many} did not end under {policy}, which refused or never started them: in no mean."


def _knows_lengths(policy: str) -> bool:
    """Whether the policy cannot be made without an oracle."""
    from ones.errors import InvalidSettingError
    from ones.policies import create

    try:
        create(policy)
    except InvalidSettingError:
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())
