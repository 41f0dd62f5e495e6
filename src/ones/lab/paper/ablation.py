"""The ablation of `ones`: groups of settings, each with the values that take it back.

`ones-paper` is another algorithm with settings of its own, so there is no way from it to `ones` by
settings. What each idea of `ones` brings is measured on `ones` itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ones.lab.comparison.variants import Variant

POLICY = "ones"

#: what each group is without its idea
GROUPS: Mapping[str, Mapping[str, Any]] = {
    "ageing": {"ageing": 0.0},
    "cost of changes": {"change_worth": 0.0},
    "draws": {"draws": 1},
    "limits": {"epoch_growth": 2.0, "most_base_batches": 8},
    "exploration": {"exploration": 2.0},
    "search": {"population": 2, "generations": 0},
}


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
