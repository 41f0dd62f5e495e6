"""The registry: a policy by its name, ours or a stranger's.

Ours are listed here and imported when asked for. A package of somebody else adds its
own with an entry point in the group `ones.policies`, and they are tested like ours. The
path of a Python file stands for the policy in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ones.core.policy import Policy
from ones.errors import InvalidSettingError, UnknownNameError, described
from ones.models.oracle import Oracle
from ones.policies.from_file import factory_in, is_file, located

__all__ = [
    "GROUP",
    "OURS",
    "PARTS",
    "Setting",
    "create",
    "located",
    "names",
    "require",
    "settings_of",
]

#: name -> module and factory; a factory takes `seed` and the policy's own settings
OURS: dict[str, str] = {
    "drl": "ones.policies.drl.policy:Drl",
    "equi": "ones.policies.equi:Equi",
    "fifo": "ones.policies.fifo:Fifo",
    "ones": "ones.policies.ones.policy:Ones",
    "ones-paper": "ones.policies.ones.policy:OnesPaper",
    "optimus": "ones.policies.optimus:Optimus",
    "pollux": "ones.policies.pollux.policy:Pollux",
    "sia": "ones.policies.sia:Sia",
    "srsf": "ones.policies.srsf:Srsf",
    "srtf": "ones.policies.srtf:Srtf",
    "tiresias": "ones.policies.tiresias:Tiresias",
}

GROUP = "ones.policies"
#: of `core.policy.Policy`: without one of them it is none
PARTS = ("decides_on", "native_mechanism", "observe", "decide", "save", "load")


def names() -> list[str]:
    """All policies that `create` knows here; files come beside them."""
    return sorted({*OURS, *_strangers()})


def require(name: str) -> None:
    """Refuse a policy that is not there."""
    _factory(name)


def create(
    name: str, /, *, seed: int = 0, oracle: Oracle | None = None, **settings: object
) -> Policy:
    """A fresh policy. Unknown names and settings are refused with what is known instead.

    `oracle` goes to policies that declare `takes_oracle`, and to nobody else.

    >>> type(create("fifo", backfill=True)).__name__
    'Fifo'
    """
    factory = _factory(name)
    known = {setting.name for setting in settings_of(name)}
    for key in settings:
        if key not in known:
            raise UnknownNameError(f"setting of policy {name}", key, known)
    truth = {"oracle": oracle} if getattr(factory, "takes_oracle", False) else {}
    try:
        policy: Policy = factory(seed=seed, **truth, **settings)
    except (TypeError, ValueError) as problem:
        raise InvalidSettingError(f"policy {name}: {problem}") from problem
    missing = [part for part in PARTS if not hasattr(policy, part)]
    if missing:
        told = f"{type(policy).__name__} has no {', '.join(missing)}"
        raise InvalidSettingError(f"policy {name}: {told}")
    return policy


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing that can be chosen about a policy."""

    name: str
    type: str
    default: object
    help: str


def settings_of(name: str) -> list[Setting]:
    """What can be set, from the fields of the policy's `Settings` class."""
    settings: Any = getattr(_factory(name), "Settings", None)
    if settings is None:
        return []
    return [
        Setting(
            f.name,
            f.type if isinstance(f.type, str) else f.type.__name__,
            None if f.default is MISSING else f.default,
            str(f.metadata.get("help", "")),
        )
        for f in fields(settings)
    ]


def _factory(name: str) -> Callable[..., Any]:
    if name in OURS:
        module, attribute = OURS[name].split(":")
        found: Callable[..., Any] = getattr(import_module(module), attribute)
        return found
    if is_file(name):
        return factory_in(name)
    strangers = _strangers()
    if name not in strangers:
        raise UnknownNameError("policy", name, names())
    try:
        loaded: Callable[..., Any] = strangers[name].load()
    except Exception as problem:  # a stranger's module may do what it likes
        value = strangers[name].value
        raise InvalidSettingError(f"policy {name!r} ({value}): {described(problem)}") from problem
    return loaded


def _strangers() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}
