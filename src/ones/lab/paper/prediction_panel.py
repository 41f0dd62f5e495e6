"""The panel on prediction: progress of jobs with its 90 % band, and the coverage of the bands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ones.lab.comparison.summary import Record
from ones.lab.paper.panel import PaperPanel, Verdict, count
from ones.report import page as html
from ones.report.charts import Axis, Curve, curves, draw

LEVEL = 0.9
#: coverage of 90 % bands that counts as calibrated
CALIBRATED = (0.8, 0.98)
EXAMPLES = 3


def prediction(records: Sequence[Record], home: Path) -> PaperPanel | None:
    from scipy.special import betainc

    jobs = [job for record in records for job in record.result["jobs"]]
    if not jobs:
        return None
    inside, errors = [], []
    for job in jobs:
        alpha, beta, truth = (np.array(job[key]) for key in ("alpha", "beta", "progress"))
        place = betainc(alpha, beta, truth)
        inside.append(float(np.mean((place >= (1 - LEVEL) / 2) & (place <= (1 + LEVEL) / 2))))
        errors.append(float(np.mean(np.abs(alpha / (alpha + beta) - truth))))
    late = [part for part, job in zip(inside, jobs, strict=True) if job["learned_from"] >= 10]
    coverage, settled = float(np.mean(inside)), float(np.mean(late)) if late else float("nan")
    shown = _examples(records[0].result["jobs"])
    drawn = draw(home, "prediction", [_paint(job) for job in shown], columns=3, size=(4.2, 3.3))
    low_limit, high_limit = CALIBRATED
    is_calibrated = low_limit <= coverage <= high_limit
    low, high = np.quantile(inside, [0.25, 0.75])
    return PaperPanel(
        anchor="prediction",
        title="Prediction of progress with its 90 % band",
        paper="An example with a mean line and a 90 % band. No number in the text.",
        ours=f"The 90 % band contains the true progress in {coverage:.0%} of all epochs"
        + (f" ({settled:.0%} once 10 jobs have finished)" if late else "")
        + f"; the mean is off by {100 * float(np.mean(errors)):.0f} points of progress on average.",
        n=f"{len(jobs)} jobs of {count(len(records), 'seed')}, up to 60 epochs of each",
        spread=f"for half of the jobs the band is right in {low:.0%} to {high:.0%} of their epochs",
        verdict=Verdict(
            is_calibrated,
            f"{'Agrees' if is_calibrated else 'Does not agree'} with what such a band promises:"
            f" {coverage:.0%} covered, where {low_limit:.0%} to {high_limit:.0%} counts as"
            " calibrated. The paper does not report its own coverage.",
        ),
        parts=[
            html.picture(
                drawn,
                "Progress of three jobs of one seed: predicted mean and 90 % band at the end of"
                " each epoch, and true progress.",
            )
        ],
    )


def _examples(jobs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Jobs with many epochs: one that ended early, one in the middle, one late."""
    parts = [part for part in np.array_split(np.arange(len(jobs)), EXAMPLES) if len(part)]
    return [jobs[max(part, key=lambda i: jobs[i]["epochs"])] for part in parts]


def _paint(job: Mapping[str, Any]) -> Any:  # noqa: ANN401
    from scipy.special import betaincinv

    alpha, beta = np.array(job["alpha"]), np.array(job["beta"])
    at = (np.array(job["at"]) - job["at"][0]).tolist()
    low, high = (betaincinv(alpha, beta, q).tolist() for q in ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    mean = (alpha / (alpha + beta)).tolist()
    return curves(
        f"{job['id']}, after {job['learned_from']} finished jobs",
        Axis("time since its first epoch (s)"),
        Axis("progress", start=0, end=1.02),
        [Curve("predicted", at, mean, low, high), Curve("true", at, job["progress"])],
    )
