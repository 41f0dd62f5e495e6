"""The variants of a comparison: policies with their default or other settings.

`tiresias` is the policy with its defaults, `tiresias:published` a variant of the table below, and
`tiresias:mine` one that `--set tiresias:mine.KEY=VALUE` describes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ones.config import of_policy
from ones.errors import InvalidSettingError, UnknownNameError
from ones.policies import require, settings_of

#: policy -> variant -> settings: readings of a publication, and tuned settings
NAMED_VARIANTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
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
        "5s": {"interval": 5.0},
        "15s": {"interval": 15.0},
    },
    "sia": {
        "published": {"restart_seconds": 30.0, "batch_growth": 1e6, "two_parts_alone": True},
        "in-rounds": {"start_at_once": False},
        "5s": {"interval": 5.0},
        "15s": {"interval": 15.0},
    },
    "equi": {"tolerance-50": {"tolerance": 0.5}, "tolerance-100": {"tolerance": 1.0}},
    "ones-artifact": {"a64": {"variant": "a64"}, "predictor": {"predictor": "beta"}},
    "ones-paper": {"closest": {"placement": "stay", "update": "affected"}},
    "fifo": {"backfill": {"backfill": True}},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    label: str
    policy: str
    settings: Mapping[str, Any] = field(default_factory=dict)


def parse_variants(
    labels: Sequence[str],
    *,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    given: Sequence[str] = (),
) -> list[Variant]:
    """`settings`: by policy, of a file. `given`: texts LABEL.KEY=VALUE, which override them."""
    chosen = _given(given, labels)
    found = []
    for label in labels:
        policy, _, variant = label.partition(":")
        require(policy)
        chosen_settings = dict((settings or {}).get(policy, {}))
        chosen_settings.update(of_policy(policy, chosen.get(policy, {})))
        if variant:
            known = named_variants(policy)
            if variant not in known and label not in chosen:
                raise UnknownNameError(f"variant of policy {policy}", variant, known)
            chosen_settings.update(of_policy(policy, known.get(variant, {})))
            chosen_settings.update(of_policy(policy, chosen.get(label, {})))
        found.append(Variant(label=label, policy=policy, settings=chosen_settings))
    if len({variant.label for variant in found}) < len(found):
        twice = next(e.label for e in found if list(labels).count(e.label) > 1)
        raise InvalidSettingError(f"--policies: {twice} appears twice")
    return found


def named_variants(policy: str) -> dict[str, Mapping[str, Any]]:
    """Variants of the policy, without those that need a setting it does not have."""
    known = {setting.name for setting in settings_of(policy)}
    return {
        name: settings
        for name, settings in NAMED_VARIANTS.get(policy, {}).items()
        if set(settings) <= known
    }


def _given(texts: Sequence[str], labels: Sequence[str]) -> dict[str, dict[str, str]]:
    known = {*labels, *(label.partition(":")[0] for label in labels)}
    found: dict[str, dict[str, str]] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        label, dot, name = key.strip().rpartition(".")
        if not equals or not dot or not label or not name:
            raise InvalidSettingError(f"--set: {text!r} is not POLICY.KEY=VALUE")
        if label not in known:
            raise UnknownNameError("policy of the comparison", label, known)
        found.setdefault(label, {})[name] = value.strip()
    return found
