"""Panels on training: speed in the simulator, and measurements of real training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from ones.lab.bench.convergence import CHANGE, EPOCHS, LOCAL_BATCH, STEADY
from ones.lab.paper import claims
from ones.lab.paper.measurements import Measurement
from ones.lab.paper.panel import PaperPanel, Verdict, all_of, count
from ones.lab.physics_figures import SPEED_FIGURE, rate
from ones.report import page as html
from ones.report.charts import Axis, Bar, Curve, bars, curves, draw
from ones.workload import Training, paper_numbers

NETWORK = "a small convolutional network on MNIST-5k"
SPIKE = 2.0  # minimum factor of a jump, relative to the loss of a batch that stays
WORKERS = (1, 2, 4, 8)
BATCH = 256

Row = Mapping[str, Any]


def speed(home: Path) -> PaperPanel:
    training = Training(kind=SPEED_FIGURE, dataset_size=50_000, base_batch=BATCH)
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
    return PaperPanel(
        anchor="speed",
        title="Training speed against workers, fixed and elastic batch (Fig. 2)",
        paper="With a fixed batch of 256 speed rises up to 2 workers, then drops; with a batch of"
        " 256 to 2048 it keeps rising. No number in the text.",
        ours=f"Fixed: {_listed(fixed)} images/s on {_listed(WORKERS)} workers, most at {peak}."
        f" Elastic: {_listed(elastic)}.",
        n="1 curve each",
        spread="exact: a formula, without noise",
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


def fixed_local_batch(found: Measurement, home: Path) -> PaperPanel:
    rows = [r for r in found.rows if r["figure"] == "workers"]
    fixed = sorted((r for r in rows if r["rule"] == "none"), key=lambda r: int(r["workers"]))
    follows = [r for r in rows if r["rule"] != "none"]
    drawn = draw(
        home,
        "fig3-fixed-local-batch",
        [
            bars("learning rate not adjusted", "epochs to the target accuracy",
                 [_epochs(r, f"{r['workers']} x {LOCAL_BATCH}") for r in fixed]),
            bars("learning rate follows the batch", "epochs to the target accuracy",
                 [_epochs(r, _short(r)) for r in [fixed[0], *follows]]),
        ],
        columns=2,
        size=(5.4, 3.8),
    )  # fmt: skip
    epochs = [float(r["epochs_to_target"]) for r in fixed]
    slower = epochs == sorted(epochs) and epochs[-1] > epochs[0]
    listed = ", ".join(f"{_workers(r)}: {r['epochs_to_target']:.1f}" for r in fixed)
    return PaperPanel(
        anchor="accuracy",
        title="Convergence with a fixed local batch (Fig. 3)",
        paper="With a local batch of 256, more GPUs converge more slowly, especially above 2. No"
        " number in the text.",
        ours=f"{NETWORK}, local batch {LOCAL_BATCH}: epochs to an accuracy of"
        f" {fixed[0]['target_accuracy']:.2f}: {listed}.",
        n=f"{count(int(fixed[0]['n']), 'seed')} for each bar",
        spread="in the figure: the fewest and the most epochs of all seeds",
        verdict=Verdict(
            slower,
            f"{'Agrees' if slower else 'Does not agree'}: epochs go from {epochs[0]:.1f} on 1"
            f" worker to {epochs[-1]:.1f} on {fixed[-1]['workers']}. The network and the data are"
            " smaller than the paper's; the direction is what can be compared.",
        ),
        measured=found.origin,
        parts=[html.picture(drawn, "Epochs until the target accuracy when the global batch grows"
                            " with the workers.")],
    )  # fmt: skip


def growth(found: Measurement, home: Path) -> list[PaperPanel]:
    """Panels of sudden and gradual growth of the batch."""
    rows = {r["case"]: r for r in found.rows if r["figure"] == "jump"}
    steady = rows[STEADY.name]
    grown = [r for name, r in rows.items() if name != STEADY.name]
    at_once = [r for r in grown if r["case"].startswith("x16")]
    stepwise = [r for r in grown if r not in at_once]
    jump = at_once[0]
    never = jump["epochs_to_recover_high"] >= EPOCHS - CHANGE
    back = f"on average after {jump['epochs_to_recover']:.1f} epochs" + (
        ", in the worst run not at all" if never else ""
    )
    spikes = jump["ratio"] is None or jump["ratio"] >= SPIKE
    highest = max((r["ratio"] for r in stepwise), default=0.0)
    calm = highest < SPIKE
    listed = "; ".join(f"{r['case']}: {_peak(r)}" for r in grown)
    return [
        PaperPanel(
            anchor="sudden",
            title="Sudden growth of the batch, 16-fold at once",
            paper="From 256 to 4096 at epoch 30: a sudden increase in the training loss; many"
            " epochs to return. No number in the text.",
            ours=f"{NETWORK}, {LOCAL_BATCH} to {16 * LOCAL_BATCH} after {CHANGE} epochs: the loss"
            f" goes up to {_peak(jump)}, and is back {back}.",
            n=f"{count(int(jump['n']), 'seed')} for each curve",
            spread=f"highest loss of a seed from {_number(jump['peak_loss_low'])} to"
            f" {_number(jump['peak_loss_high'])}",
            verdict=Verdict(spikes, f"{'Agrees' if spikes else 'Does not agree'}: {_peak(jump)}."),
            measured=found.origin,
            parts=[_losses(home, "growth-sudden", [*at_once, steady])],
        ),
        PaperPanel(
            anchor="gradual",
            title="Gradual growth of the batch, 16-fold in steps",
            paper="From 256 to 1024 to 4096: the training performance can be basically guaranteed."
            " No number in the text.",
            ours=f"Highest loss after the first change: {listed}.",
            n=f"{count(int(jump['n']), 'seed')} for each curve",
            spread="; ".join(
                f"{r['case']}: {_number(r['peak_loss_low'])} to {_number(r['peak_loss_high'])}"
                for r in stepwise
            ),
            verdict=Verdict(calm, f"{'Agrees' if calm else 'Does not agree'}: at most"
                            f" {highest:.1f} times the loss of a batch that stays, against"
                            f" {_number(jump['ratio'])} for the jump."),
            measured=found.origin,
            parts=[_losses(home, "growth-gradual", [*stepwise, steady])],
        ),
    ]  # fmt: skip


def overheads(found: Measurement, home: Path) -> PaperPanel:
    """Panel of pauses by model size: the median over all changes, with the shortest and longest."""
    by_size: dict[float, list[Row]] = {}
    for row in found.rows:
        if row["rival"] == "checkpoint":
            by_size.setdefault(float(row["parameter_mb"]), []).append(row)
    ours = [_bar(size, rows, "pause_ms") for size, rows in sorted(by_size.items())]
    theirs = [_bar(size, rows, "rival_pause_ms") for size, rows in sorted(by_size.items())]
    drawn = draw(
        home,
        "overheads",
        [
            bars("between two steps", "seconds", ours),
            bars("stop, checkpoint, start", "seconds", theirs),
        ],
        columns=2,
        size=(5.4, 3.8),
    )
    longest, slowest = max(b.high or 0.0 for b in ours), max(b.high or 0.0 for b in theirs)
    least = min(float(row["ratio"]) for rows in by_size.values() for row in rows)
    kinds = paper_numbers().kinds.values()
    charged = (min(k.rescale_seconds for k in kinds), max(k.rescale_seconds for k in kinds))
    restart = (min(k.restart_seconds for k in kinds), max(k.restart_seconds for k in kinds))
    within, over = longest <= 1.5, slowest > claims.CHECKPOINT_SECONDS
    n = sorted({int(row["n"]) for rows in by_size.values() for row in rows})
    return PaperPanel(
        anchor="overheads",
        title="Overheads: elastic rescaling and checkpoint migration",
        paper="Elastic: around 1 second. Checkpoint: can be greater than 20 seconds.",
        ours=f"Models of the paper's sizes, {', '.join(f'{size:.0f}' for size in sorted(by_size))}"
        f" MB. Elastic: {min(b.low or 0.0 for b in ours):.3f} to {longest:.2f} s. Checkpoint:"
        f" {min(b.low or 0.0 for b in theirs):.1f} to {slowest:.1f} s, at least {least:.0f} times"
        f" as long. The simulator charges {charged[0]:.2f} to {charged[1]:.2f} s and"
        f" {restart[0]:.0f} to {restart[1]:.0f} s, derived for GPUs.",
        n=f"each change {' or '.join(str(k) for k in n)} times, {len(by_size)} sizes",
        spread="in the figure: from the shortest to the longest kind of change",
        verdict=all_of(
            Verdict(within, f"{'Agrees' if within else 'Does not agree'}: at most {longest:.2f} s"
                    " between two steps."),
            Verdict(over, f"{'Agrees' if over else 'Does not agree'}: at most {slowest:.1f} s"
                    " through a checkpoint. Processes on CPUs and a local disk start faster than"
                    " those on GPUs: no CUDA context, no NCCL, no shared file system."),
        ),
        measured=found.origin,
        parts=[html.picture(drawn, "Pause of a job when its workers change, by size of its"
                            " parameters.")],
    )  # fmt: skip


def _listed(values: tuple[int, ...] | list[float]) -> str:
    return ", ".join(f"{value:,.0f}" for value in values)


def _bar(size: float, rows: Sequence[Row], key: str) -> Bar:
    seconds = [float(row[key]) / 1000 for row in rows]
    return Bar(f"{size:.0f} MB", median(seconds), min(seconds), max(seconds))


def _epochs(row: Row, name: str) -> Bar:
    low, high = row["epochs_to_target_low"], row["epochs_to_target_high"]
    return Bar(name, float(row["epochs_to_target"]), float(low), float(high))


def _short(row: Row) -> str:
    return str(row["case"]).partition(",")[0]


def _workers(row: Row) -> str:
    return count(int(row["workers"]), "worker")


def _number(value: float | None) -> str:
    return "infinity" if value is None else html.number(value)


def _peak(row: Row) -> str:
    if row["peak_loss"] is None:
        return "infinity: some runs diverged"
    return f"{row['peak_loss']:.3f}, {row['ratio']:.1f} times that of a batch that stays"


def _losses(home: Path, name: str, rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        known = [(e + 1, loss) for e, loss in enumerate(row["losses"]) if loss is not None]
        lines.append(
            Curve(str(row["case"]), [e for e, _ in known], [loss for _, loss in known],
                  dashed=row["case"] == STEADY.name)
        )  # fmt: skip
    drawn = draw(
        home,
        name,
        [curves(f"median over seeds, {EPOCHS} epochs", Axis("epoch"),
                Axis("training loss", log=True), lines)],
        size=(6.4, 3.8),
    )  # fmt: skip
    return html.picture(drawn, f"Training loss as the batch grows after {CHANGE} epochs.")
