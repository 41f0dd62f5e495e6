"""The compiled operators; tests compare each with its namesake in `reference`.

They are in one file because a cached kernel does not notice changes in another one. Random numbers
are splitmix64, seeded for each candidate, so results depend only on the seeds. A candidate in
change is a dense array of GPUs by job (`c`) and the order of its jobs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ones.policies.ones.place.genome import Rows
from ones.policies.ones.place.operators import PAPER, SLOPE, Seeds, Tables
from ones.policies.ones.score.problem import Flags, Floats, Ints

_LOW = np.uint64(0xFFFFFFFF)
_UNIT = 2.0**-32


class Bench(NamedTuple):
    """Workspace for one candidate; all zero between two candidates."""

    c: Ints  # GPUs of each job
    jobs: Ints  # running jobs, in order
    barred: Flags  # excluded from the fill
    keys: Floats  # a heap, with its jobs
    heap: Ints


@njit(cache=True, nogil=True)
def _bench(jobs: int) -> Bench:
    return Bench(
        np.zeros(jobs, np.int32),
        np.zeros(jobs + 1, np.int32),
        np.zeros(jobs, np.bool_),
        np.zeros(jobs + 1, np.float64),
        np.zeros(jobs + 1, np.int32),
    )


@njit(cache=True, nogil=True)
def _mixed(state: np.uint64) -> np.uint64:
    z = state
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(cache=True, nogil=True)
def _next(state: Seeds) -> np.uint64:
    """Returns the next number of splitmix64; `state` is an array of one."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    return _mixed(state[0])


@njit(cache=True, nogil=True)
def _low(x: np.uint64) -> float:
    return float(x & _LOW) * _UNIT


@njit(cache=True, nogil=True)
def _high(x: np.uint64) -> float:
    return float(x >> np.uint64(32)) * _UNIT


# Functions that are called for every job take single arrays: passing `Tables`, with about 150
# values, made a generation three times as slow.


@njit(cache=True, nogil=True)
def _push(keys: Floats, heap: Ints, size: int, key: float, job: int) -> int:
    at = size
    while at > 0:
        up = (at - 1) >> 1
        if keys[up] < key or (keys[up] == key and heap[up] < job):
            break
        keys[at], heap[at] = keys[up], heap[up]
        at = up
    keys[at], heap[at] = key, job
    return size + 1


@njit(cache=True, nogil=True)
def _drop_first(keys: Floats, heap: Ints, size: int) -> int:
    size -= 1
    key, job = keys[size], heap[size]
    at = 0
    while True:
        down = 2 * at + 1
        if down >= size:
            break
        if down + 1 < size and (
            keys[down + 1] < keys[down]
            or (keys[down + 1] == keys[down] and heap[down + 1] < heap[down])
        ):
            down += 1
        if key < keys[down] or (key == keys[down] and job < heap[down]):
            break
        keys[at], heap[at] = keys[down], heap[down]
        at = down
    keys[at], heap[at] = key, job
    return size


@njit(cache=True, nogil=True)
def _start_waiting(t: Tables, b: Bench, n: int, idle: int, order: Ints) -> tuple[int, int]:
    """Starts waiting jobs with their minimum, in order; returns running jobs and idle GPUs."""
    for place in range(t.runnable):
        if idle == 0:
            break
        job = order[place]
        if b.c[job] == 0 and not b.barred[job] and t.least[job] <= idle:
            b.c[job] = t.least[job]
            b.jobs[n] = job
            n += 1
            idle -= t.least[job]
    return n, idle


@njit(cache=True, nogil=True)
def _next_waiting(c: Ints, barred: Flags, least: Ints, order: Ints, place: int, idle: int) -> int:
    """Returns the next index in the order with a waiting job that can start."""
    while place < len(order):
        job = order[place]
        if c[job] == 0 and not barred[job] and least[job] <= idle:
            break
        place += 1
    return place


@njit(cache=True, nogil=True)
def _pays(scores: NDArray[np.float64], work: Floats, job: int, now: int, to: int) -> bool:
    return bool(work[job] * (scores[job, to, 1] - scores[job, now, 1]) < 0.0)


@njit(cache=True, nogil=True)
def _fill(t: Tables, b: Bench, n: int, idle: int, x: np.uint64) -> int:
    """Gives idle GPUs to jobs; x chooses the rule and the draw."""
    rule = SLOPE if _low(x) < t.slope_share else PAPER
    fill = int(_high(x) * t.fill_work.shape[0])
    order, order_cost = t.order[rule, fill, : t.runnable], t.order_cost[rule, fill]
    grown, growth, work = t.grown[rule], t.growth[rule], t.fill_work[fill]
    keys, heap = b.keys, b.heap
    place = 0
    if rule == PAPER:
        n, idle = _start_waiting(t, b, n, idle, order)
        place = t.runnable
    if idle == 0:
        return n
    size = 0
    for i in range(n):
        job = b.jobs[i]
        c = b.c[job]
        if c < t.most[job]:
            key = work[job] * growth[job, c]
            size = _push(keys, heap, size, key, job)
    while idle > 0:
        place = _next_waiting(b.c, b.barred, t.least, order, place, idle)
        starts = place < t.runnable and (size == 0 or order_cost[place] <= keys[0])
        if not starts and size == 0:
            break
        if t.idle_charge == 0.0 and (order_cost[place] if starts else keys[0]) >= 0.0:
            break  # no remaining step pays
        if starts:
            job = order[place]
            place += 1
        else:
            job = heap[0]
            size = _drop_first(keys, heap, size)
        c = b.c[job]
        to = min(grown[job, c], c + idle)  # the last job gets the rest
        if t.idle_charge == 0.0 and to < grown[job, c] and not _pays(t.scores, work, job, c, to):
            continue  # the whole step pays, a part of it does not
        if starts:
            b.jobs[n] = job
            n += 1
        b.c[job] = to
        idle -= to - c
        if to < t.most[job]:
            key = work[job] * growth[job, to]
            size = _push(keys, heap, size, key, job)
    return n


@njit(cache=True, nogil=True)
def _take(t: Tables, b: Bench, needed: int) -> None:
    """Takes GPUs from the longest running jobs: first above their minimum, then all."""
    for job in t.by_age:
        if needed <= 0:
            return
        spare = min(b.c[job] - t.least[job], needed)
        if spare > 0:
            b.c[job] -= spare
            needed -= spare
    for job in t.by_age:
        if needed <= 0:
            return
        needed -= b.c[job]
        b.c[job] = 0


@njit(cache=True, nogil=True)
def _repair(t: Tables, b: Bench, n: int, x: np.uint64) -> int:
    """Trims and fills; returns the number of running jobs."""
    used = 0
    for i in range(n):
        job = b.jobs[i]
        c = min(b.c[job], t.most[job])
        b.c[job] = c if c >= t.least[job] else 0
        used += b.c[job]
    if used > t.gpus:
        _take(t, b, used - t.gpus)
    kept = 0
    idle = t.gpus
    for i in range(n):
        job = b.jobs[i]
        if b.c[job] > 0:
            b.jobs[kept] = job
            kept += 1
            idle -= b.c[job]
    return _fill(t, b, kept, idle, x) if idle > 0 else kept


@njit(cache=True, nogil=True)
def _finish(b: Bench, n: int, rows: Rows, at: int) -> None:
    """Writes the candidate to a row and clears the workspace."""
    rows.length[at] = n
    for i in range(n):
        job = b.jobs[i]
        rows.jobs[at, i] = job
        rows.counts[at, i] = b.c[job]
        b.c[job] = 0


@njit(cache=True, nogil=True)
def _start(rows: Rows, at: int, b: Bench) -> int:
    n = int(rows.length[at])
    for i in range(n):
        job = rows.jobs[at, i]
        b.jobs[i] = job
        b.c[job] = rows.counts[at, i]
    return n


@njit(cache=True, nogil=True)
def scatter(t: Tables, seeds: Seeds, rows: Rows) -> None:
    """First population: a random job on every GPU, repaired."""
    b = _bench(len(t.least))
    runnable = np.flatnonzero(t.most > 0)
    state = np.zeros(1, np.uint64)
    for row in range(len(seeds)):
        state[0] = seeds[row]
        n = 0
        for _ in range(t.gpus if len(runnable) else 0):
            job = runnable[int(_high(_next(state)) * len(runnable))]
            if b.c[job] == 0:
                b.jobs[n] = job
                n += 1
            b.c[job] += 1
        n = _repair(t, b, n, _next(state))
        _finish(b, n, rows, row)


@njit(cache=True, nogil=True)
def refresh(t: Tables, seeds: Seeds, rows: Rows) -> None:
    """Adapts every row to the present limits; its jobs have new indices already."""
    b = _bench(len(t.least))
    state = np.zeros(1, np.uint64)
    for row in range(len(seeds)):
        state[0] = seeds[row]
        n = _start(rows, row, b)
        n = _repair(t, b, n, _next(state))
        _finish(b, n, rows, row)


@njit(cache=True, nogil=True)
def _inherit(c: Ints, jobs: Ints, n: int, job: int, count: int) -> int:
    jobs[n] = job
    n += int(c[job] == 0 and count > 0)
    c[job] += count
    return n


@njit(cache=True, nogil=True)
def _cross(
    rows: Rows, pair: tuple[int, int], gpus: int, ones: Ints, one: Bench, other: Bench
) -> tuple[int, int]:
    """Makes two children; `ones[g]`: of the first g GPUs, those that child 1 has from parent 1.

    The runs of the parents are cut where either ends. Of each piece, child 1 gets as many GPUs
    from parent 1 as there are ones in it; child 2 gets the rest.
    """
    first, second = pair
    n, m = 0, 0
    i, j = 0, 0
    at = 0
    end_i = rows.counts[first, 0] if rows.length[first] > 0 else gpus
    end_j = rows.counts[second, 0] if rows.length[second] > 0 else gpus
    while at < gpus:
        end = min(end_i, end_j)
        mine = ones[end] - ones[at]
        rest = end - at - mine
        swapped = ones[at + 1] == ones[at]  # its first GPU comes from the second parent
        for turn in range(2):
            if (turn == 0) != swapped:
                if i < rows.length[first]:
                    n = _inherit(one.c, one.jobs, n, rows.jobs[first, i], mine)
                if j < rows.length[second]:
                    m = _inherit(other.c, other.jobs, m, rows.jobs[second, j], mine)
            else:
                if j < rows.length[second]:
                    n = _inherit(one.c, one.jobs, n, rows.jobs[second, j], rest)
                if i < rows.length[first]:
                    m = _inherit(other.c, other.jobs, m, rows.jobs[first, i], rest)
        at = end
        if end_i == at:
            i += 1
            end_i = at + rows.counts[first, i] if i < rows.length[first] else gpus
        if end_j == at:
            j += 1
            end_j = at + rows.counts[second, j] if j < rows.length[second] else gpus
    return n, m


@njit(cache=True, nogil=True)
def _coins(state: Seeds, ones: Ints) -> None:
    """Draws a fair coin for every GPU, as running sums."""
    bits = np.uint64(0)
    for gpu in range(len(ones) - 1):
        if gpu & 63 == 0:
            bits = _next(state)
        ones[gpu + 1] = ones[gpu] + np.int32(bits & np.uint64(1))
        bits >>= np.uint64(1)


@njit(cache=True, nogil=True)
def crossover(
    t: Tables, pairs: NDArray[np.int64], seeds: Seeds, rows: Rows, into: int, repair: bool
) -> None:
    """Uniform crossover: two children of every pair, in rows from `into` on."""
    one, other = _bench(len(t.least)), _bench(len(t.least))
    ones = np.zeros(t.gpus + 1, np.int32)
    state = np.zeros(1, np.uint64)
    for p in range(len(pairs)):
        state[0] = seeds[p]
        _coins(state, ones)
        pair = (pairs[p, 0], pairs[p, 1])
        n, m = _cross(rows, pair, t.gpus, ones, one, other)
        if repair:
            n = _repair(t, one, n, _next(state))
            m = _repair(t, other, m, _next(state))
        _finish(one, n, rows, into + 2 * p)
        _finish(other, m, rows, into + 2 * p + 1)


@njit(cache=True, nogil=True)
def mutate(
    t: Tables, parents: NDArray[np.int64], rates: Floats, seeds: Seeds, rows: Rows, into: int
) -> None:
    """Uniform mutation: each job is preempted at the rate; a rate below 0 stands for θ."""
    b = _bench(len(t.least))
    state = np.zeros(1, np.uint64)
    for p in range(len(parents)):
        state[0] = seeds[p]
        n = _start(rows, parents[p], b)
        rate = rates[p]
        if rate < 0:
            rate = min(max(t.mutated_jobs / max(n, 1), t.least_rate), t.most_rate)
        for i in range(n):
            x = _next(state)
            if _low(x) < rate:
                b.c[b.jobs[i]] = 0
                b.barred[b.jobs[i]] = _high(x) < t.left_out
        m = _repair(t, b, n, _next(state))
        _finish(b, m, rows, into + p)
        for i in range(rows.length[parents[p]]):
            b.barred[rows.jobs[parents[p], i]] = False


@njit(cache=True, nogil=True)
def score(t: Tables, rows: Rows, ranks: Floats, single: Floats, marks: Seeds) -> None:
    """Cost of every row (Eq. 8), ranked and for single draws, and a mark of its counts."""
    for row in range(len(ranks)):
        rank = 0.0
        used = 0
        mark = np.uint64(0)
        for d in range(single.shape[1]):
            single[row, d] = 0.0
        for i in range(rows.length[row]):
            job, c = rows.jobs[row, i], rows.counts[row, i]
            used += c
            rank += t.scores[job, c, 0]
            step = t.scores[job, c, 1]
            for d in range(single.shape[1]):
                single[row, d] += t.draws[job, d] * step
            mark += _mixed((np.uint64(job) << np.uint64(32)) + np.uint64(c) + np.uint64(1))
        idle = t.idle_charge * max(0, t.usable - used)
        ranks[row] = rank + idle
        marks[row] = mark
        for d in range(single.shape[1]):
            single[row, d] += idle


@njit(cache=True, nogil=True)
def winners(single: Floats, free: Flags, wanted: int) -> NDArray[np.int64]:
    """Returns `wanted` rows: each draw in turn takes its best rows among the free ones."""
    chosen = np.zeros(wanted, np.int64)
    n = 0
    draws = single.shape[1]
    for d in range(draws):
        begin = n
        share = wanted // draws + int(d < wanted % draws)
        for row in range(len(single)):
            if not free[row]:
                continue
            cost = single[row, d]
            full = n - begin == share
            if share == 0 or (full and single[chosen[n - 1], d] <= cost):
                continue
            at = n - 1 if full else n
            n += int(not full)
            while at > begin and single[chosen[at - 1], d] > cost:
                chosen[at] = chosen[at - 1]
                at -= 1
            chosen[at] = row
        for i in range(begin, n):
            free[chosen[i]] = False
    return chosen[:n]
