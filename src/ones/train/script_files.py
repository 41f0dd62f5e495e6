"""Checkpoint files of the script's own, in plain torch format: readable without ONES."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

import torch

from ones.errors import UserError
from ones.train.replica import Replica

_COMPILED = "_orig_mod."  # torch.compile puts it into the names of parameters


def save_file(replica: Replica, path: str | os.PathLike[str], extra: dict[str, Any]) -> None:
    """Writes model, optimizer, schedule, scaler and `extra`, atomically."""
    progress = replica.progress
    state: dict[str, Any] = {
        "model": {
            name.replace(_COMPILED, ""): value for name, value in replica.model.state_dict().items()
        },
        "optimizer": replica.optimizer.state_dict(),
        "epoch": progress.epoch,
        "steps": progress.step,
        "samples": progress.samples,
    }
    if replica.scheduler is not None:
        state["scheduler"] = replica.scheduler.state_dict()
    if replica.scaler is not None:
        state["scaler"] = replica.scaler.state_dict()
    script = replica.script.state()
    state |= script["also"] | ({"state": script["values"]} if script["values"] else {})
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    try:
        torch.save(state | extra, temporary)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def load_file(replica: Replica, path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns what the file has. Loads it if the job has not trained yet.

    The file may also be a plain `state_dict` of the model.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserError(f"{os.fspath(path)}: no such file") from None
    if not isinstance(state, dict):
        raise UserError(f"{os.fspath(path)}: holds a {type(state).__name__}, not a dict")
    if replica.progress.step > 0:
        return state  # the job goes on from its own state, which is newer
    model: dict[str, Any] = state.get("model") or state.get("state_dict") or state
    plain = {name.replace(_COMPILED, ""): value for name, value in model.items()}
    own = {name: plain.get(name.replace(_COMPILED, "")) for name in replica.model.state_dict()}
    missing = [name for name, value in own.items() if value is None]
    if missing:
        raise UserError(f"{os.fspath(path)}: no value for {missing[0]} ({len(missing)} missing)")
    replica.model.load_state_dict(own)
    for name, target in (
        ("optimizer", replica.optimizer),
        ("scheduler", replica.scheduler),
        ("scaler", replica.scaler),
    ):
        if target is not None and name in state:
            target.load_state_dict(state[name])
    script = replica.script.state()
    also = {name: state[name] for name in script["also"] if name in state}
    replica.script.load({"values": state.get("state", {}), "also": also})
    return state
