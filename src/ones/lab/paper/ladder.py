"""The steps from `ones-paper` to `ones`: one group of settings at a time.

Which settings differ is read from the two profiles. The groups only give the steps their
order and name; a setting that no group knows is a step of its own, at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ones.lab.entrants import Entrant
from ones.policies import settings_of

FROM, TO = "ones-paper", "ones"

GROUPS: Sequence[tuple[str, Sequence[str]]] = (
    ("score", ("score", "to_come", "ageing", "seniority", "stay_share", "grown_share",
               "change_worth", "waiting_charge", "switching_cost")),
    ("sampling", ("draws", "select_by_mean")),
    ("limits", ("warmup_steps", "growth", "ripening", "epoch_growth", "most_base_batches",
                "least_steps", "most_gpus", "trust_requested")),
    ("sigma", ("sigma", "shrink_only_when_waiting", "scale_down")),
    ("update rule", ("update", "spacing", "least_stay")),
    ("predictor", ("link", "kinds", "temper", "cold_start_epochs", "trust_declared",
                   "overruns")),
    ("speed and goodput", ("throughput", "effective", "batch")),
    ("crossover, mutation and refresh", ("crossover", "mutation", "admit_new",
                                         "fill_waiting_first", "sizes", "exploration")),
    ("placement", ("placement", "candidates")),
    ("search effort", ("seeds", "population", "generations", "idle_generations", "patience")),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    changes: dict[str, Any]  # to the values of `ones`
    back: dict[str, Any]  # the values of `ones-paper`


def steps() -> list[Step]:
    before = {s.name: s.default for s in settings_of(FROM)}
    after = {s.name: s.default for s in settings_of(TO)}
    differing = [name for name in after if name in before and after[name] != before[name]]
    grouped = [(name, [m for m in members if m in differing]) for name, members in GROUPS]
    known = {member for _, members in GROUPS for member in members}
    grouped += [(name, [name]) for name in differing if name not in known]
    return [
        Step(name, {m: after[m] for m in members}, {m: before[m] for m in members})
        for name, members in grouped
        if members
    ]


def up() -> list[Entrant]:
    """`ones-paper`, then with each group as in `ones`, added to those before; the last is `ones`
    in every setting."""
    found = [Entrant(label=FROM, policy=FROM)]
    changed: dict[str, Any] = {}
    for step in steps():
        changed = {**changed, **step.changes}
        found.append(Entrant(label=f"+ {step.name}", policy=FROM, settings=changed))
    return found


def without() -> list[Entrant]:
    """`ones`, then with one group at a time put back to `ones-paper`'s."""
    found = [Entrant(label=TO, policy=TO)]
    found += [
        Entrant(label=f"without {step.name}", policy=TO, settings=step.back) for step in steps()
    ]
    return found
