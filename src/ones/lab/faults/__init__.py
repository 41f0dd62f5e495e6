"""Deterministic fault simulation of the live service.

The real controller (`ones.control`) runs in one thread under a virtual clock, with a simulated
launcher, network and disk. A seed decides every fault; two runs of a seed are identical.
"""

from __future__ import annotations

from ones.lab.faults.scenario import KINDS
from ones.lab.faults.simulation import FaultRunResult, run_seed

__all__ = ["KINDS", "FaultRunResult", "run_seed"]
