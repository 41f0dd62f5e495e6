"""Messages that no honest worker sends: changed, repeated, oversized and random ones."""

from __future__ import annotations

import json
from random import Random
from typing import Any

ODD_VALUES: tuple[Any, ...] = (
    0, -1, 1, 2**31, 2**53, 2**63 - 1, 2**64, 10**400, 0.0, -1.0, 1e-320, 1e308, float("nan"),
    float("inf"), -float("inf"), "", "x", "n0/0", "n0/99", "nowhere/0", "\ud800", "y" * 10_000,
    None, True, [], {}, [[]], {"type": "Reports"},
)  # fmt: skip
MANY_CONFIGURATIONS = 400


def mutate(body: bytes, rng: Random) -> tuple[str, bytes]:
    """A description of the change, and the changed message."""
    choice = rng.random()
    if choice < 0.08:
        return "random bytes", rng.randbytes(rng.randint(0, 200))
    if choice < 0.10:
        return "deep brackets", b"[" * 20_000
    if choice < 0.15:
        return "half of it", body[: len(body) // 2]
    if choice < 0.20:
        return "as it was", body
    plain = json.loads(body)
    if choice < 0.26:
        plain["reports"] = [_speed(batch) for batch in range(1, MANY_CONFIGURATIONS)]
        plain["first"] = plain["first"] or 1
        return "many configurations", json.dumps(plain).encode()
    if choice < 0.34:
        plain["plan"] = rng.choice((0, plain["plan"] + rng.randint(-2, 5), 2**62))
        return "another plan", json.dumps(plain).encode()
    if choice < 0.42:
        plain["first"] = rng.choice((0, -5, 1, 2**63 - 2, 2**53))
        return "another number", json.dumps(plain).encode()
    if choice < 0.50 and plain.get("reports"):
        plain["reports"] = plain["reports"] * rng.randint(2, 5)
        return "repeated reports", json.dumps(plain).encode()
    if choice < 0.62:
        plain["reports"] = [rng.choice(_FALSE_REPORTS)]
        plain["first"] = plain["first"] or rng.randint(1, 100)
        return f"a lie: {plain['reports'][0]['type']}", json.dumps(plain).encode()
    places = _fields(plain)
    holder, key = rng.choice(places)
    value = rng.choice(ODD_VALUES)
    holder[key] = value
    return f"{key} is {str(value)[:20]!r}", json.dumps(plain).encode()


def _speed(batch: int) -> dict[str, Any]:
    return {
        "type": "Speed", "gpus": 1, "nodes": 1, "batch": batch, "micro_steps": 1,
        "step_seconds": 0.1, "steps": 1,
    }  # fmt: skip


_FALSE_REPORTS: tuple[dict[str, Any], ...] = (
    {"type": "Speed", "gpus": 1, "nodes": 1, "batch": 8, "micro_steps": 1, "step_seconds": 0.1,
     "steps": 0},
    {"type": "Epoch", "epoch": 1, "steps": 1, "samples": 1, "planned_epochs": 0},
    {"type": "Epoch", "epoch": 2**40, "steps": 1, "samples": 2**52},
    {"type": "Joined", "dataset_size": 0, "base_batch": 0, "optimizer": "", "parameter_bytes": 0},
    {"type": "Joined", "dataset_size": 1, "base_batch": 1, "optimizer": "", "parameter_bytes": 0,
     "max_local_batch": 0},
    {"type": "MemoryLimit", "max_local_batch": 0},
    {"type": "MemoryLimit", "max_local_batch": 1},
    {"type": "Switched", "pause_seconds": 0.1, "members": ["n0/0", "n9/9", "n0/0"]},
    {"type": "Switched", "pause_seconds": -5.0},
    {"type": "SwitchFailed", "reason": "because", "plan": 1},
    {"type": "SwitchFailed", "reason": "because", "plan": 0},
    {"type": "StoreStarted", "address": "::::"},
    {"type": "Hung", "worker": "x"},
    {"type": "Hung", "worker": "n0/0"},
    {"type": "Leaving", "done": True},
    {"type": "Leaving"},
    {"type": "Ready"},
)  # fmt: skip


def _fields(plain: Any) -> list[tuple[Any, Any]]:  # noqa: ANN401
    """Every field and element, as its container and key."""
    found: list[tuple[Any, Any]] = []
    items = plain.items() if isinstance(plain, dict) else enumerate(plain)
    for key, value in list(items):
        found.append((plain, key))
        if isinstance(value, dict | list):
            found += _fields(value)
    return found
