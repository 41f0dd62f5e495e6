"""The settings of a command, from flags, variables and file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ones.config import Effective, load, of_policy
from ones.errors import InvalidSettingError


def effective(*, section: str = "sim", **flags: Any) -> Effective:
    """The effective settings with the given flags of one section; a flag of None is not given."""
    given = {name: value for name, value in flags.items() if value is not None}
    return load(os.environ, Path.cwd(), flags={section: given})


def policy_settings(base: Effective, policy: str, pairs: list[str]) -> dict[str, Any]:
    """Settings of a policy: `[policy.NAME]` of the file, then `--set key=value`."""
    given = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise InvalidSettingError(f"--set: {pair!r} is not KEY=VALUE")
        given[key.strip()] = text.strip()
    return {**base.settings.policy.get(policy, {}), **of_policy(policy, given)}
