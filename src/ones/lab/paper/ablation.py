"""The ablation between `ones-paper` and `ones`: one group of settings at a time.

The settings that differ are read from the two policies. The groups give them an order and a name;
a setting without a group is a group of its own at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ones.lab.comparison.variants import Variant
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
class SettingGroup:
    name: str
    changes: dict[str, Any]  # values of `ones`
    published: dict[str, Any]  # values of `ones-paper`


def setting_groups() -> list[SettingGroup]:
    before = {s.name: s.default for s in settings_of(FROM)}
    after = {s.name: s.default for s in settings_of(TO)}
    differing = [name for name in after if name in before and after[name] != before[name]]
    grouped = [(name, [m for m in members if m in differing]) for name, members in GROUPS]
    known = {member for _, members in GROUPS for member in members}
    grouped += [(name, [name]) for name in differing if name not in known]
    return [
        SettingGroup(name, {m: after[m] for m in members}, {m: before[m] for m in members})
        for name, members in grouped
        if members
    ]


def cumulative() -> list[Variant]:
    """`ones-paper`, then with one more group of `ones` at a time; the last has all of them."""
    found = [Variant(label=FROM, policy=FROM)]
    changed: dict[str, Any] = {}
    for group in setting_groups():
        changed = {**changed, **group.changes}
        found.append(Variant(label=f"+ {group.name}", policy=FROM, settings=changed))
    return found


def leave_one_out() -> list[Variant]:
    """`ones`, then with one group at a time as in `ones-paper`."""
    found = [Variant(label=TO, policy=TO)]
    found += [
        Variant(label=f"without {group.name}", policy=TO, settings=group.published)
        for group in setting_groups()
    ]
    return found
