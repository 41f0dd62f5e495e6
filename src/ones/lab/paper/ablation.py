"""The ablation of `ones`: groups of settings, each with the values that take it back.

`ones-paper` is another algorithm with settings of its own, so there is no way from it to `ones` by
settings. What each idea of `ones` brings is measured on `ones` itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ones.lab.comparison.variants import Variant

POLICY = "ones"

#: what each group is without its idea; as in the paper where the paper has a counterpart
GROUPS: Mapping[str, Mapping[str, Any]] = {
    "weights of ages and arrivals": {"to_come": 0.0, "ageing": 0.0, "seniority": 0.0},
    "cost of changes": {"switching_cost": False},
    "draws": {"draws": 1},
    "limits": {"ripening": 0.0, "epoch_growth": 2.0, "trust_requested": False},
    "scale-down": {"shrink_only_when_waiting": False},
    "minimum stay": {"least_stay": 0.0, "least_run": 0.0},
    "predictor": {
        "link": "max", "kinds": False, "temper": False, "trust_declared": False, "overruns": False,
    },
    "speed and goodput": {"throughput": "per-gpu", "effective": False, "batch": "limit"},
    "sizes": {"sizes": "limit"},
    "placement of several candidates": {"candidates": 1},
    "search effort": {"seeds": False, "population": 0, "generations": 1},
}  # fmt: skip


def cumulative() -> list[Variant]:
    """`ones` without any group, then with one more group at a time; the last is `ones`."""
    found = []
    missing = dict(GROUPS)
    for name in ("without all groups", *GROUPS):
        missing.pop(name, None)
        label = f"+ {name}" if name in GROUPS else name
        settings = {key: value for group in missing.values() for key, value in group.items()}
        found.append(Variant(label=label, policy=POLICY, settings=settings))
    return found


def leave_one_out() -> list[Variant]:
    """`ones`, then without one group at a time."""
    found = [Variant(label=POLICY, policy=POLICY)]
    found += [
        Variant(label=f"without {name}", policy=POLICY, settings=dict(settings))
        for name, settings in GROUPS.items()
    ]
    return found
