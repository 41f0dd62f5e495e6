"""The registry of policies: ours by name, others by entry point (`ones.policies`) or file."""

from __future__ import annotations

from ones import extensions
from ones.core.policy import Policy
from ones.errors import InvalidSettingError
from ones.extensions import ExtensionPoint, SettingInfo, located
from ones.models.oracle import Oracle

__all__ = ["OURS", "create", "limits_live", "located", "names", "require", "settings_of"]

#: name -> module and factory; a factory takes `seed` and the policy's own settings
OURS: dict[str, str] = {
    "afs": "ones.policies.afs:Afs",
    "deeprm": "ones.policies.deeprm.policy:DeepRm",
    "dl2": "ones.policies.dl2.policy:Dl2",
    "drl": "ones.policies.drl.policy:Drl",
    "equi": "ones.policies.equi:Equi",
    "fifo": "ones.policies.fifo:Fifo",
    "ftf": "ones.policies.ftf:Ftf",
    "gandiva": "ones.policies.gandiva.policy:Gandiva",
    "oasis": "ones.policies.oasis:Oasis",
    "ones": "ones.policies.ones.policy:Ones",
    "ones-artifact": "ones.policies.ones_paper.artifact:OnesArtifact",
    "ones-paper": "ones.policies.ones_paper.policy:OnesPaper",
    "optimus": "ones.policies.optimus:Optimus",
    "philly": "ones.policies.philly:Philly",
    "pollux": "ones.policies.pollux.policy:Pollux",
    "sia": "ones.policies.sia:Sia",
    "sjf": "ones.policies.sjf:Sjf",
    "slaq": "ones.policies.slaq:Slaq",
    "srsf": "ones.policies.srsf:Srsf",
    "srtf": "ones.policies.srtf:Srtf",
    "tiresias": "ones.policies.tiresias:Tiresias",
}
#: attributes of every `core.policy.Policy`
PARTS = ("decides_on", "native_mechanism", "observe", "decide", "save", "load")

_POLICIES = ExtensionPoint(
    kind="policy", plural="policies", group="ones.policies", method="decide", ours=OURS
)
names = _POLICIES.names


def require(name: str) -> None:
    """Raises UnknownNameError if there is no such policy."""
    _POLICIES.find(name)


def create(
    name: str, /, *, seed: int = 0, oracle: Oracle | None = None, **settings: object
) -> Policy:
    """A fresh policy. Unknown names and settings are refused with what is known instead.

    `oracle` is given to policies that declare `takes_oracle`, and to no other.

    >>> type(create("fifo", backfill=True)).__name__
    'Fifo'
    """
    factory = _POLICIES.find(name)
    _POLICIES.check_settings(name, settings)
    truth = {"oracle": oracle} if getattr(factory, "takes_oracle", False) else {}
    try:
        policy: Policy = factory(seed=seed, **truth, **settings)
    except (TypeError, ValueError) as problem:
        raise InvalidSettingError(f"policy {name}: {problem}") from problem
    missing = [part for part in PARTS if not hasattr(policy, part)]
    if missing:
        raise InvalidSettingError(
            f"policy {name}: {type(policy).__name__} has no {', '.join(missing)}"
        )
    return policy


def limits_live(name: str) -> str:
    """What the policy does only in simulations; empty: it does the same in the service."""
    return str(getattr(_POLICIES.find(name), "limits_live", ""))


def settings_of(name: str) -> list[SettingInfo]:
    """The fields of the policy's `Settings` class."""
    return extensions.settings_of(_POLICIES.find(name))
