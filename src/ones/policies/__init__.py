"""The registry of policies: built-in ones, those of other packages, and files.

Built-in policies are listed here and imported when used. Another package adds its policies with an
entry point in the group `ones.policies`. The path of a Python file stands for the policy in it.
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
    "PolicySetting",
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
#: required attributes, as in `core.policy.Policy`
PARTS = ("decides_on", "native_mechanism", "observe", "decide", "save", "load")


def names() -> list[str]:
    """The names that `create` accepts, besides files."""
    return sorted({*OURS, *_plugins()})


def require(name: str) -> None:
    """Raises UnknownNameError if there is no such policy."""
    _factory(name)


def create(
    name: str, /, *, seed: int = 0, oracle: Oracle | None = None, **settings: object
) -> Policy:
    """Creates a policy. Errors about unknown names and settings list the known ones.

    `oracle` is passed only to policies that declare `takes_oracle`.

    >>> type(create("fifo", backfill=True)).__name__
    'Fifo'
    """
    factory = _factory(name)
    known = {setting.name for setting in settings_of(name)}
    for key in settings:
        if key not in known:
            raise UnknownNameError(f"setting of policy {name}", key, known)
    extra = {"oracle": oracle} if getattr(factory, "takes_oracle", False) else {}
    try:
        policy: Policy = factory(seed=seed, **extra, **settings)
    except (TypeError, ValueError) as problem:
        raise InvalidSettingError(f"policy {name}: {problem}") from problem
    missing = [part for part in PARTS if not hasattr(policy, part)]
    if missing:
        raise InvalidSettingError(
            f"policy {name}: {type(policy).__name__} has no {', '.join(missing)}"
        )
    return policy


@dataclass(frozen=True, slots=True)
class PolicySetting:
    """A setting of a policy."""

    name: str
    type: str
    default: object
    help: str


def settings_of(name: str) -> list[PolicySetting]:
    """The settings of a policy, from the fields of its `Settings` class."""
    settings: Any = getattr(_factory(name), "Settings", None)
    if settings is None:
        return []
    return [
        PolicySetting(
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
    plugins = _plugins()
    if name not in plugins:
        raise UnknownNameError("policy", name, names())
    try:
        loaded: Callable[..., Any] = plugins[name].load()
    except Exception as problem:  # the module of another package may raise anything
        value = plugins[name].value
        raise InvalidSettingError(f"policy {name!r} ({value}): {described(problem)}") from problem
    return loaded


def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}
