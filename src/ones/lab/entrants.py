"""Who takes part in a comparison: policies by name, each as it is or in a named variant.

`tiresias` is the policy with its own settings, `tiresias:published` a variant of the table
below, and `tiresias:mine` one that `--set tiresias:mine.KEY=VALUE` describes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ones.config import of_policy
from ones.errors import InvalidSettingError, UnknownNameError
from ones.policies import require, settings_of

#: policy -> variant -> settings: readings of a publication that differ in strength
VARIANTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "tiresias": {
        "published": {"thresholds": "published"},
        "gittins": {"variant": "gittins"},
        "gittins-published": {"variant": "gittins", "thresholds": "published"},
        "packed": {"placement": "packed"},
    },
    "optimus": {
        "strict": {"idle_start": "off"},
        "pause-all": {"idle_start": "off", "pause_all": True},
        "lookahead": {"lookahead": True},
        "minute": {"interval": 60.0},
        "oracle": {"knowledge": "oracle"},
    },
    "drl": {"offline": {"online": False}, "new-kinds": {"known_kinds": False}},
    "pollux": {
        "published": {"restart_seconds": 30.0, "batch_growth": 1e6, "two_parts_alone": True},
        "in-rounds": {"start_at_once": False},
    },
    "sia": {
        "published": {"restart_seconds": 30.0, "batch_growth": 1e6, "two_parts_alone": True},
        "in-rounds": {"start_at_once": False},
    },
    "fifo": {"backfill": {"backfill": True}},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    label: str
    policy: str
    settings: Mapping[str, Any] = field(default_factory=dict)


def entrants(
    labels: Sequence[str],
    *,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    given: Sequence[str] = (),
) -> list[Entrant]:
    """`settings` are those of each policy (of a file), `given` are texts WHO.KEY=VALUE on top."""
    chosen = _given(given, labels)
    found = []
    for label in labels:
        policy, _, variant = label.partition(":")
        require(policy)
        own = dict((settings or {}).get(policy, {}))
        own.update(of_policy(policy, chosen.get(policy, {})))
        if variant:
            known = variants_of(policy)
            if variant not in known and label not in chosen:
                raise UnknownNameError(f"variant of policy {policy}", variant, known)
            own.update(of_policy(policy, known.get(variant, {})))
            own.update(of_policy(policy, chosen.get(label, {})))
        found.append(Entrant(label=label, policy=policy, settings=own))
    if len({entrant.label for entrant in found}) < len(found):
        twice = next(e.label for e in found if list(labels).count(e.label) > 1)
        raise InvalidSettingError(f"--policies: {twice} is there twice")
    return found


def variants_of(policy: str) -> dict[str, Mapping[str, Any]]:
    """Those whose settings the policy has here."""
    known = {setting.name for setting in settings_of(policy)}
    return {
        name: settings
        for name, settings in VARIANTS.get(policy, {}).items()
        if set(settings) <= known
    }


def _given(texts: Sequence[str], labels: Sequence[str]) -> dict[str, dict[str, str]]:
    taking_part = {*labels, *(label.partition(":")[0] for label in labels)}
    found: dict[str, dict[str, str]] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        who, dot, name = key.strip().rpartition(".")
        if not equals or not dot or not who or not name:
            raise InvalidSettingError(f"--set: {text!r} is not POLICY.KEY=VALUE")
        if who not in taking_part:
            raise UnknownNameError("policy of the comparison", who, taking_part)
        found.setdefault(who, {})[name] = value.strip()
    return found
