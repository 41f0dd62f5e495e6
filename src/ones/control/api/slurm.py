"""HTTP routes of the allocations that the service asks Slurm for by itself."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field, StringConstraints, model_validator

from ones.control.api.access import TheAdmin, TheRecord, TheService, TheUser
from ones.control.api.request_models import Count, Strict, Word
from ones.control.api.response_models import ADMINS, PROBLEMS, SlurmAutoShown
from ones.control.slurm_auto import AutoRequest

router = APIRouter(prefix="/api/slurm/auto", tags=["service"], responses=PROBLEMS)

#: options of sbatch that the service sets itself
_OURS = ("--array", "--job-name", "--nodes", "--time", "--wait", "-a", "-J", "-N", "-t", "-W")


class NewSlurmAuto(Strict):
    max_nodes: Count = Field(description="maximum number of nodes of all allocations")
    time: Annotated[str, StringConstraints(pattern=r"^(\d{1,4}-)?\d{1,5}(:\d\d){0,2}$")] = Field(
        description="time limit of each allocation, in Slurm's format", examples=["4:00:00"]
    )
    nodes: Count = Field(1, description="nodes of each allocation")
    gpus_per_node: Annotated[int, Field(ge=0, le=1000)] = 0
    slots: Annotated[int, Field(ge=1, le=1000)] = Field(
        1, description="CPU slots of each node without GPUs"
    )
    idle_seconds: Annotated[float, Field(ge=1, le=1e6, allow_inf_nan=False)] = Field(
        300.0, description="an allocation without workers ends after this time, if no job waits"
    )
    lead: Annotated[int, Field(ge=10, le=65535)] = Field(
        300, description="seconds before the time limit at which jobs save their work"
    )
    options: Annotated[list[Word], Field(max_length=100)] = Field(
        default_factory=list, description="further options of sbatch", examples=[["--partition=a"]]
    )

    @model_validator(mode="after")
    def _checked(self) -> NewSlurmAuto:
        if self.nodes > self.max_nodes:
            raise ValueError(f"nodes: {self.nodes} is more than max_nodes {self.max_nodes}")
        for option in self.options:
            if not option.startswith("-") or option.startswith(_OURS):
                raise ValueError(f"options: {option!r} is no option of sbatch, or set by ONES")
        return self


@router.get("")
def shown(service: TheService, user: TheUser) -> SlurmAutoShown | None:
    """The allocations that the service asks for; null: it does not."""
    return SlurmAutoShown.of(service.slurm_auto.shown()) if service.slurm_auto else None


@router.put("", responses=ADMINS)
async def change(
    new: NewSlurmAuto, service: TheService, admin: TheAdmin, record: TheRecord
) -> SlurmAutoShown | None:
    """Ask Slurm for allocations when jobs wait, and end them when they are idle."""
    values = {**new.model_dump(), "options": tuple(new.options)}
    await asyncio.to_thread(service.auto_of_slurm().set, AutoRequest(**values))
    record("slurm auto", f"{new.max_nodes} nodes", f"{new.time} {' '.join(new.options)}".strip())
    return shown(service, admin)


@router.delete("", responses=ADMINS)
async def end(service: TheService, admin: TheAdmin, record: TheRecord) -> None:
    """Ask for no more allocations; cancel the pending ones and end those that run."""
    await asyncio.to_thread(service.auto_of_slurm().set, None)
    record("slurm auto", "off")
