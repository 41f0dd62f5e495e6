"""Panels on how simulated jobs train: speed, batches, pauses.

They restate assumptions of the simulator, and the page says so. `measured_training` replaces them
where real training was measured.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from ones.lab.paper import claims
from ones.lab.paper.panel import EvaluationPanel, Verdict, all_of, count
from ones.lab.physics_figures import SPEED_FIGURE, rate, train_alone
from ones.report import page as html
from ones.report.charts import Axis, Bar, Curve, bars, curves, draw
from ones.workload import Training, paper_numbers

WORKERS = (1, 2, 4, 8)
BATCH, DATASET = 256, 50_000
ACCURACY_EPOCHS = 40
TARGET = 0.7  # accuracy at which the curves are compared
GROWN, STAGE = 4096, 30  # batch, and epochs of each stage
FORMULA = "exact: a formula, without noise"


def speed(home: Path) -> EvaluationPanel:
    training = Training(kind=SPEED_FIGURE, dataset_size=DATASET, base_batch=BATCH)
    fixed = [rate(training, n, BATCH) for n in WORKERS]
    elastic = [rate(training, n, BATCH * n) for n in WORKERS]
    peak = WORKERS[fixed.index(max(fixed))]
    grows = elastic == sorted(elastic)
    drawn = draw(
        home,
        "fig2-speed",
        [
            curves(
                "ResNet50 on CIFAR10",
                Axis("workers (GPUs)", log=True, ticks=WORKERS),
                Axis("images per second", start=0),
                [
                    Curve(f"fixed batch, {BATCH} in all", WORKERS, fixed),
                    Curve(f"elastic batch, {BATCH} to {BATCH * WORKERS[-1]}", WORKERS, elastic),
                ],
            ),
            curves(
                "the fixed batch alone",
                Axis("workers (GPUs)", log=True, ticks=WORKERS),
                Axis("images per second"),
                [Curve("fixed", WORKERS, fixed)],
            ),
        ],
        columns=2,
        size=(5.4, 3.6),
    )
    same = peak == claims.FIXED_BATCH_PEAK and grows
    return EvaluationPanel(
        anchor="speed",
        title="Training speed against workers, fixed and elastic batch (Fig. 2)",
        paper="With a fixed batch of 256 speed rises up to 2 workers, then drops; with a batch of"
        " 256 to 2048 it goes on rising. No number in the text.",
        ours=f"Fixed: {_listed(fixed)} images/s on {_listed(WORKERS)} workers, most at {peak}."
        f" Elastic: {_listed(elastic)}.",
        n="1 curve each",
        spread=FORMULA,
        verdict=Verdict(
            same,
            f"The shape {'agrees' if same else 'does not agree'}: the fixed batch peaks at {peak}"
            f" workers ({claims.FIXED_BATCH_PEAK} in the text), the elastic one"
            f" {'keeps rising' if grows else 'does not keep rising'}. But two constants of this"
            " job were set so that it would; the panel shows that the assumption is in force.",
        ),
        assumption=True,
        parts=[html.picture(drawn, "Training speed of ResNet50 on CIFAR10.")],
    )


def fixed_local_batch(home: Path) -> EvaluationPanel:
    training = Training(
        kind=SPEED_FIGURE, dataset_size=DATASET, base_batch=BATCH, rate_follows=False
    )
    courses = {n: train_alone(training, _always(BATCH * n), ACCURACY_EPOCHS)[1] for n in WORKERS}
    epochs = list(range(1, ACCURACY_EPOCHS + 1))
    needed = {
        n: next((e for e, a in zip(epochs, course, strict=True) if a >= TARGET), None)
        for n, course in courses.items()
    }
    drawn = draw(
        home,
        "fig3-fixed-local-batch",
        [
            curves(
                "learning rate not adjusted",
                Axis("epoch"),
                Axis("accuracy", start=0, end=1),
                [
                    Curve(f"{count(n, 'GPU')}, batch {BATCH * n}", epochs, c)
                    for n, c in courses.items()
                ],
            )
        ],
        size=(6.4, 3.8),
    )
    known = [needed[n] or ACCURACY_EPOCHS + 1 for n in WORKERS]
    slower = known == sorted(known) and known[-1] > known[0]
    told = ", ".join(
        f"{count(n, 'GPU')}: {needed[n] or f'over {ACCURACY_EPOCHS}'}" for n in WORKERS
    )
    return EvaluationPanel(
        anchor="accuracy",
        title="Accuracy with a fixed local batch of 256 (Fig. 3)",
        paper="More GPUs converge more slowly, especially above 2. No number in the text.",
        ours=f"Epochs to an accuracy of {TARGET}: {told}.",
        n="1 curve each",
        spread=FORMULA,
        verdict=Verdict(
            slower,
            f"{'Agrees' if slower else 'Does not agree'}: epochs to {TARGET} go from {known[0]} on"
            f" 1 GPU to {known[-1]} on {WORKERS[-1]}. The exponent behind it is assumed"
            " (`ones trace physics`).",
        ),
        assumption=True,
        parts=[html.picture(drawn, "Accuracy when the global batch grows with the GPUs and the"
                            " learning rate does not.")],
    )  # fmt: skip


def growth(home: Path) -> list[EvaluationPanel]:
    """Sudden and gradual."""
    training = Training(kind=SPEED_FIGURE, dataset_size=DATASET, base_batch=BATCH)
    middle = int((BATCH * GROWN) ** 0.5)
    epochs = list(range(1, 3 * STAGE + 1))
    plans: dict[str, Callable[[int], int]] = {
        f"{BATCH} throughout": lambda _: BATCH,
        f"{BATCH} to {GROWN} at epoch {STAGE}": lambda e: GROWN if e >= STAGE else BATCH,
        f"{BATCH}, {middle}, {GROWN}: {STAGE} epochs each": lambda e: (BATCH, middle, GROWN)[
            min(e // STAGE, 2)
        ],
    }
    losses = {name: train_alone(training, plan, len(epochs))[0] for name, plan in plans.items()}
    plain, sudden, gradual = losses.values()
    names = list(losses)
    rise = _rise(sudden)
    back = next((e for e in range(STAGE, len(epochs)) if sudden[e] <= sudden[STAGE - 1]), None)
    climb = _rise(gradual)
    panels = []
    for anchor, title, name, course, paper, ours, verdict in (
        (
            "sudden", "Sudden growth of the batch, 256 to 4096 at epoch 30", names[1], sudden,
            "A sudden increase in the training loss; many epochs to return. No number in the text.",
            f"The loss rises by {rise:.0%} at epoch {STAGE + 1} and is back after"
            f" {'more than 60' if back is None else back - STAGE + 1} epochs.",
            Verdict(rise > 0.2, f"{'Agrees' if rise > 0.2 else 'Does not agree'}: a jump of the"
                    f" loss by {rise:.0%}. Its size is assumed."),
        ),
        (
            "gradual", "Gradual growth of the batch, 256, 1024, 4096", names[2], gradual,
            "The training performance can be basically guaranteed. No number in the text.",
            f"The loss rises by at most {max(climb, 0.0):.0%} from an epoch to the next; after 90"
            f" epochs it is {gradual[-1]:.3f}, against {plain[-1]:.3f} with batch {BATCH}.",
            Verdict(climb <= 0.02, f"{'Agrees' if climb <= 0.02 else 'Does not agree'}: no jump"
                    " when each step is four times the last. That four is the limit is assumed."),
        ),
    ):  # fmt: skip
        drawn = draw(
            home,
            f"growth-{anchor}",
            [
                curves(
                    "ResNet50 on CIFAR10",
                    Axis("epoch"),
                    Axis("training loss", log=True),
                    [Curve(name, epochs, course), Curve(names[0], epochs, plain, dashed=True)],
                )
            ],
            size=(6.4, 3.6),
        )
        panels.append(
            EvaluationPanel(
                anchor=anchor, title=title, paper=paper, ours=ours, n="1 curve each",
                spread=FORMULA, verdict=verdict, assumption=True,
                parts=[html.picture(drawn, "Training loss as the batch grows.")],
            )
        )  # fmt: skip
    return panels


def overheads(home: Path) -> EvaluationPanel:
    kinds = paper_numbers().kinds
    elastic = {name: kind.rescale_seconds for name, kind in kinds.items()}
    restart = {name: kind.restart_seconds for name, kind in kinds.items()}
    drawn = draw(
        home,
        "overheads",
        [
            bars("between two steps", "seconds", [Bar(k, v) for k, v in elastic.items()]),
            bars("through a checkpoint", "seconds", [Bar(k, v) for k, v in restart.items()]),
        ],
        columns=2,
        size=(5.4, 3.8),
    )
    quick, slow = max(elastic.values()), min(restart.values())
    over = sum(v > claims.CHECKPOINT_SECONDS for v in restart.values())
    return EvaluationPanel(
        anchor="overheads",
        title="Overheads: elastic re-scaling and checkpoint migration",
        paper="Elastic: around 1 second. Checkpoint: can be greater than 20 seconds.",
        ours=f"Elastic: {min(elastic.values()):.2f} to {quick:.2f} s. Checkpoint: {slow:.1f} to"
        f" {max(restart.values()):.1f} s, above 20 s for {over} of {len(restart)} models.",
        n=f"{len(kinds)} models",
        spread="exact: constants of the data file, derived from sizes and bandwidths",
        verdict=all_of(
            Verdict(quick <= 1.5, f"{'Agrees' if quick <= 1.5 else 'Does not agree'}: at most"
                    f" {quick:.2f} s between two steps."),
            Verdict(over > 0, f"{'Agrees' if over else 'Does not agree'}: {over} models above"
                    " 20 s through a checkpoint. Both were derived before they were compared, and"
                    " are what every run pays; pauses of real training are measured elsewhere."),
        ),
        assumption=True,
        parts=[html.picture(drawn, "What one change of size costs in the simulator, by model.")],
    )  # fmt: skip


def _always(batch: int) -> Callable[[int], int]:
    return lambda epoch: batch


def _rise(losses: list[float]) -> float:
    """The largest from an epoch to the next, as a share."""
    return max(b / a - 1 for a, b in pairwise(losses))


def _listed(values: tuple[int, ...] | list[float]) -> str:
    return ", ".join(f"{value:,.0f}" for value in values)
