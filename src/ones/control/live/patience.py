"""How long the live engine waits for what, before it does something about it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """In seconds."""

    join_seconds: float = 300.0  # from its start until a script calls `ones.join`
    switch_seconds: float = 180.0  # from the go-ahead until the new group trains
    checkpoint_seconds: float = 120.0  # until a worker that was told to save and go is gone
    end_seconds: float = 10.0  # the same for one whose job is over
    grace_seconds: float = 10.0  # between SIGTERM and SIGKILL
    #: until one that ended without a word counts as lost; longer than the 10 s that a worker that
    #: is done takes to get its last reports through
    quiet_seconds: float = 15.0
    silence_seconds: float = 120.0  # a worker that does not call for so long hangs
