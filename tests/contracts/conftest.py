"""What stands behind the contracts: PostgreSQL and Slurm, where they are installed."""

from __future__ import annotations

from tests.databases import postgres
from tests.slurm import slurm_allocation, slurm_cluster

__all__ = ["postgres", "slurm_allocation", "slurm_cluster"]
