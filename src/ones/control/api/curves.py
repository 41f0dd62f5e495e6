"""HTTP route of the curves of several jobs against epochs, samples or time."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from ones.control.api.access import TheService, TheUser, job_of
from ones.control.api.past_models import CurvesOfJob, CurvesShown
from ones.control.api.response_models import NOT_FOUND, PROBLEMS, Curves
from ones.control.readmodels.progress_curves import Axis, progress_curves

router = APIRouter(tags=["jobs"], responses=PROBLEMS)

MOST_JOBS = 50


@router.get("/api/curves", responses=NOT_FOUND)
def curves_of_jobs(
    service: TheService,
    user: TheUser,
    job: Annotated[
        list[str], Query(min_length=1, max_length=MOST_JOBS, description="repeat it for each job")
    ],
    against: Annotated[
        Axis,
        Query(
            description="finished epochs, samples of them, or seconds since the job's first start"
        ),
    ] = "epochs",
    points: Annotated[
        int, Query(ge=2, le=20_000, description="about the maximum number of points of a curve")
    ] = 1000,
) -> CurvesShown:
    """Loss, accuracy, batch, GPUs and samples per second of several jobs, on one axis."""
    cards = [job_of(each, service, user) for each in dict.fromkeys(job)]
    return CurvesShown(
        against=against,
        jobs=[
            CurvesOfJob(
                id=card.id,
                name=card.name,
                owner=card.owner,
                state=card.state,
                curves=Curves.model_validate(
                    progress_curves(service.store, card.id, against, points)
                ),
            )
            for card in cards
        ],
    )
