"""How long the live engine waits before it acts on a delay."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Timeouts of the live engine, in seconds."""

    join_seconds: float = 300.0  # from the start of a worker until its script calls `ones.join`
    switch_seconds: float = 180.0  # from the go-ahead until the new group trains
    checkpoint_seconds: float = 120.0  # until a worker that was ordered to save and leave is gone
    end_seconds: float = 10.0  # the same after the end of the job
    grace_seconds: float = 10.0  # between SIGTERM and SIGKILL
    #: until a worker that exited without a report counts as lost; longer than the 10 s for which a
    #: worker that is done tries to send its last reports
    quiet_seconds: float = 15.0
    silence_seconds: float = 120.0  # a worker that has not called for this time hangs
