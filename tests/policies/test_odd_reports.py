"""No report that passes the border stops a policy: every field, odd values, every policy."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import groupby
from random import Random
from typing import get_args

import pytest

from ones.core import EndReason, Event, Policy
from ones.core import events as ev
from ones.core.events import JobReport
from ones.models.oracle import RemainingWork
from ones.policies import create, names
from ones.testing.invariants import check_invariants
from tests.odd_values import STOPPED_ONCE, VALUES, Oddity, all_odd, oddities, reported_fields
from tests.policies.scripted_jobs import ODD, PLAIN, USUAL, Alter, Asked, ScriptedJobs, live

#: the short run tries one in N of the odd values of each field, by policy; at least one
ONE_IN = {
    "fifo": 1,
    "afs": 12,
    "deeprm": 12,
    "dl2": 12,
    "drl": 6,
    "equi": 6,
    "ftf": 12,
    "gandiva": 12,
    "oasis": 12,
    "optimus": 6,
    "philly": 6,
    "sjf": 6,
    "slaq": 12,
    "ones": 99,
    "ones-paper": 99,
    "ones-artifact": 99,
}
#: a life takes these policies 0.4 s: in the short run only several odd fields at once
SLOW = ("pollux", "sia")
#: the long run tries all values in each of the ways, but for these policies one in N
ONE_IN_LONG = {"ones": 3, "ones-paper": 3, "ones-artifact": 3, "oasis": 6, "pollux": 12, "sia": 12}
#: policies with other settings, which use other models
OTHER_SETTINGS: list[tuple[str, dict[str, object]]] = [
    ("tiresias", {"variant": "gittins", "placement": "step-time"}),
    ("optimus", {"lookahead": True, "placement": "stay"}),
    ("optimus", {"knowledge": "oracle"}),
    ("ones", {"draws": 1, "population": 2, "generations": 0}),
    ("ones-paper", {"predictor": "gaussian-process", "throughput": "fitted"}),
    ("pollux", {"power": -1.0, "least_local_batch": 2}),
]


def fresh(name: str, **settings: object) -> Policy:
    """A policy; oracles get a constant as the truth."""
    return create(name, seed=1, oracle=lambda job, gpus, batch: RemainingWork(9.0, 2.0), **settings)


def lived(policy: Policy, alter: Alter, *, asked: Asked = PLAIN, times: int = 1) -> ScriptedJobs:
    """Nothing raises, most of the other jobs have trained, and the policy can be saved.

    A policy may refuse a job.
    """
    lives = live(policy, alter, asked=asked, times=times)
    check_invariants(lives.scheduler.state)
    others = [job for name, job in lives.scheduler.state.ended.items() if not name.startswith(ODD)]
    assert len(others) == 4 * times
    assert all(job.reason.completed or job.reason is EndReason.REFUSED for job in others)
    refused = sum(job.reason is EndReason.REFUSED for job in others)
    assert sum(job.epochs > 0 for job in others) >= 2 * times - refused
    saved = json.dumps(policy.save(), allow_nan=False)
    policy.load(json.loads(saved))
    lives.wait(1.0)
    assert json.dumps(policy.save(), allow_nan=False)
    return lives


def once(oddity: Oddity) -> Alter:
    """The first report of that type is odd."""
    left = [oddity]
    return lambda event: [left.pop().of(event)] if left and _is_of(oddity, event) else [event]


def always(oddity: Oddity) -> Alter:
    return lambda event: [oddity.of(event) if _is_of(oddity, event) else event]


def beside(oddity: Oddity) -> Alter:
    """Each report of that type comes as it is, then odd, then odd once more."""

    def alter(event: Event) -> Iterable[Event]:
        return [event, oddity.of(event), oddity.of(event)] if _is_of(oddity, event) else [event]

    return alter


def _is_of(oddity: Oddity, event: Event) -> bool:
    return type(event) is oddity.event


def all_fields(dice: Random, share: float) -> Alter:
    """In this part of all reports, about half of the fields are odd."""

    def alter(event: Event) -> Iterable[Event]:
        is_odd = type(event) in VALUES and dice.random() < share
        return [all_odd(event, dice) if is_odd else event]

    return alter


Way = Callable[[Oddity], Alter]
WAYS: tuple[Way, ...] = (once, always, beside)


def sampled(one_in: int, first: int) -> Iterable[Oddity]:
    """One in N of the values of each field, at least one."""
    for _, group in groupby(oddities(), key=lambda oddity: oddity[:2]):
        values = list(group)
        yield from values[first % min(one_in, len(values)) :: one_in]


def kills(name: str, values: Iterable[Oddity], first_way: int = 0) -> list[str]:
    """The odd values that stop the policy; each is reported in one of the ways."""
    found = []
    for number, oddity in enumerate(values):
        way = WAYS[(number + first_way) % len(WAYS)]
        try:
            lived(fresh(name), way(oddity), asked=USUAL[number // 3 % len(USUAL)])
        except Exception as problem:
            found.append(f"{oddity} ({way.__name__}): {problem!r:.200}")
    return found


def test_there_are_odd_values_for_every_field_of_every_report() -> None:
    for report in get_args(JobReport):
        fields = {field.partition(".")[0] for field in VALUES[report]}
        assert fields == reported_fields(report), report.__name__


def test_every_report_is_in_an_honest_life() -> None:
    """Of any policy: else its odd values would be tried on nothing."""
    told: set[type[Event]] = set()

    def alter(event: Event) -> Iterable[Event]:
        told.add(type(event))
        return [event]

    lived(fresh("fifo"), alter)
    assert told >= {*get_args(JobReport), ev.JobSubmitted}


@pytest.mark.parametrize("name", [name for name in names() if name not in SLOW])
def test_one_odd_field_stops_no_policy(name: str) -> None:
    one_in = ONE_IN.get(name, 2)
    some = sampled(one_in, names().index(name))
    if one_in > 1:  # reports of another generation are dropped before a policy sees them
        some = (odd for odd in some if not odd.field.startswith("generation"))
    assert kills(name, [*STOPPED_ONCE, *some]) == []


@pytest.mark.parametrize("name", names())
def test_reports_full_of_odd_values_stop_no_policy(name: str) -> None:
    for seed in range(4):
        dice = Random(f"{name}/{seed}")
        lived(fresh(name), all_fields(dice, dice.choice((0.3, 1.0))), asked=USUAL[seed])


@pytest.mark.parametrize(("name", "settings"), OTHER_SETTINGS, ids=str)
def test_nor_do_they_stop_one_with_other_settings(name: str, settings: dict[str, object]) -> None:
    for seed in range(2):
        dice = Random(f"{name}/{settings}/{seed}")
        lived(fresh(name, **settings), all_fields(dice, 1.0), asked=USUAL[seed + 1])


@pytest.mark.slow
@pytest.mark.parametrize("first_way", range(len(WAYS)))
@pytest.mark.parametrize("name", names())
def test_no_odd_value_of_any_field_stops_a_policy(name: str, first_way: int) -> None:
    one_in = ONE_IN_LONG.get(name, 1)
    assert kills(name, sampled(one_in, one_in // len(WAYS) * first_way), first_way) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_a_policy_bears_generations_of_odd_jobs(name: str) -> None:
    """What it has learned from them is in force when the next ones come."""
    for seed in range(2 if name in SLOW else 10):
        dice = Random(f"generations/{name}/{seed}")
        share = dice.choice((0.1, 0.3, 1.0))
        lived(fresh(name), all_fields(dice, share), asked=USUAL[seed % len(USUAL)], times=8)
