"""Figures of the simulator's training model: speed, efficiency, epochs, loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ones.core.cluster import Cluster
from ones.core.job import Job, JobId
from ones.core.schedule import Allocation
from ones.errors import WorldError
from ones.report.panels import Panel, PlotLine, draw_panels
from ones.sim.kinds import KindPhysics
from ones.sim.lengths import epochs_needed
from ones.sim.sim_job import SimJob
from ones.workload import Training, paper_numbers
from ones.workload.kinds import Kind

GPUS = (1, 2, 4, 8, 16, 32, 64)
#: the job of the paper's figure of training speed
SPEED_FIGURE = "resnet50-cifar10"
#: the job and the change of its figure of sudden and gradual growth
JUMP_FIGURE, JUMP_AT, JUMP_EPOCHS = "resnet18-cifar10", 10, 40


def typical(kind: Kind) -> Training:
    """A job of the kind with a medium dataset."""
    middle = len(kind.sizes) // 2
    return Training(
        kind=kind.name,
        dataset_size=kind.sizes[middle],
        classes=kind.classes[middle],
        base_batch=int(kind.base_batch),
    )


def rate(training: Training, gpus: int, batch: int) -> float:
    """Samples per second on packed nodes."""
    physics = KindPhysics(training)
    places = list(Cluster.of(gpus).gpus())
    allocation = Allocation.even(places, max(batch, gpus), physics.max_local_batch)
    return allocation.batch / physics.step_seconds(allocation)


def train_alone(training: Training, batch_at: Callable[[int], int], epochs: int) -> list[float]:
    """Loss after each epoch on one GPU, with the batch of each epoch."""
    physics = KindPhysics(training)
    place = list(Cluster.of(1).gpus())
    job = SimJob(0, Job(id=JobId("figure"), submitted_at=0.0), training, physics)
    losses, at = [], 0.0
    for epoch in range(epochs):
        if batch_at(epoch) != job.batch:
            job.begin(at, Allocation.even(place, batch_at(epoch), physics.max_local_batch))
        at = job.epoch_end()
        job.finish_epoch(at)
        losses.append(job.loss() or 0.0)
    return losses


def draw_model(name: str, directory: Path) -> Path:
    """Speed and efficiency of one kind."""
    kind = paper_numbers().kind(name)
    path = _directory(directory) / f"{name}.png"
    draw_panels([_speed(kind), _efficiency(kind)], path, title=name)
    return path


def draw_all(directory: Path) -> list[Path]:
    """The pictures of docs/physics.md."""
    home = _directory(directory)
    kinds = list(paper_numbers().kinds.values())
    figures: list[tuple[str, str, Sequence[Panel], int]] = [
        ("speed", "Throughput, by size and batch", [_speed(kind) for kind in kinds], 4),
        ("efficiency", "What a sample is worth", [_efficiency(kind) for kind in kinds], 4),
        ("epochs", "", [_epochs(kinds)], 1),
        ("paper-speed", "", [_paper_speed()], 1),
        ("jump", "", [_jump()], 1),
    ]
    drawn = []
    for name, title, panels, columns in figures:
        path = home / f"physics-{name}.png"
        size = (3.4, 2.7) if columns > 1 else (6.4, 3.9)
        draw_panels(panels, path, title=title, columns=columns, size=size)
        drawn.append(path)
    return drawn


def _speed(kind: Kind) -> Panel:
    training, base = typical(kind), int(kind.base_batch)
    growing = [rate(training, n, base * n) for n in GPUS]
    fixed = [n for n in GPUS if n <= base]  # at least one sample each
    return Panel(
        title=kind.name,
        x="GPUs",
        y="samples per second",
        lines=[
            PlotLine(f"batch {base} each", GPUS, growing),
            PlotLine(f"batch {base} in all", fixed, [rate(training, n, base) for n in fixed]),
            PlotLine("in proportion", GPUS, [n * growing[0] for n in GPUS], dashed=True),
        ],
        log_x=True,
        log_y=True,
        ticks=GPUS,
    )


def _efficiency(kind: Kind) -> Panel:
    physics = KindPhysics(typical(kind))
    base, end = int(kind.base_batch), physics.epochs_to_target()
    batches = [base * n for n in GPUS]
    return Panel(
        title=kind.name,
        x="global batch",
        y="efficiency",
        lines=[
            PlotLine(
                f"{part:.0%} done", batches, [physics.efficiency(b, part * end) for b in batches]
            )
            for part in (0.0, 0.5, 1.0)
        ],
        log_x=True,
        ticks=batches[::2],
    )


def _epochs(kinds: Sequence[Kind]) -> Panel:
    lines = []
    for kind in kinds:
        training, base = typical(kind), int(kind.base_batch)
        needed = [epochs_needed(training, base * n) for n in GPUS]
        lines.append(PlotLine(kind.name, GPUS, [e / needed[0] for e in needed]))
    return Panel(
        title="Epochs to the target and its confirmation, against those at the base batch",
        x="batch, in base batches",
        y="epochs, relative",
        lines=lines,
        log_x=True,
        ticks=GPUS,
    )


def _paper_speed() -> Panel:
    training = Training(kind=SPEED_FIGURE, dataset_size=50_000, base_batch=256)
    sizes = (1, 2, 4, 8)
    return Panel(
        title="ResNet50 on CIFAR10: a fixed batch peaks at two workers, an elastic one does not",
        x="workers",
        y="images per second",
        lines=[
            PlotLine("batch 256 in all", sizes, [rate(training, n, 256) for n in sizes]),
            PlotLine("batch 256 each", sizes, [rate(training, n, 256 * n) for n in sizes]),
        ],
        log_x=True,
        ticks=sizes,
    )


def _jump() -> Panel:
    training = typical(paper_numbers().kind(JUMP_FIGURE))
    epochs = list(range(1, JUMP_EPOCHS + 1))

    def line(name: str, batch_at: Callable[[int], int]) -> PlotLine:
        return PlotLine(name, epochs, train_alone(training, batch_at, JUMP_EPOCHS))

    return Panel(
        title=f"{JUMP_FIGURE}: growth of the batch from 256 to 4096",
        x="epoch",
        y="training loss",
        lines=[
            line("x16 at once", lambda e: 4096 if e >= JUMP_AT else 256),
            line("x4 twice", lambda e: 4096 if e >= JUMP_AT + 5 else 1024 if e >= JUMP_AT else 256),
            line("none", lambda e: 256),
        ],
    )


def _directory(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise WorldError(f"{path}: cannot be created: {problem.strerror}") from problem
    return path
