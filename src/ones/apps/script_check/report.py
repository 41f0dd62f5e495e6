"""The report on a script: its shape, and each line that would change."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ones.apps.script_check.facts import Call, Facts, facts_of
from ones.apps.script_check.shapes import (
    TEXTS,
    Shape,
    optimizers,
    schedules,
    shape_of,
    streams,
    trainers,
    training_loop,
)
from ones.errors import UserError

MOST_BYTES = 4 << 20  # of a script that is read


@dataclass(frozen=True, slots=True)
class Change:
    line: int
    found: str
    do: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptReport:
    script: str
    shape: str
    title: str
    elastic: str  # yes, after changes, no
    changes: tuple[Change, ...]
    guide: str
    traits: tuple[str, ...]  # ddp, accumulation, ema, amp, clip, schedule, checkpoints, compile


def check_script(path: Path) -> ScriptReport:
    """Reads a script, without running it. Raises UserError if it cannot be read."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UserError(f"{path}: more than {MOST_BYTES >> 20} MB: not a script")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the script's own string literals
            tree = ast.parse(path.read_bytes(), str(path))
    except OSError as problem:
        raise UserError(f"{path}: {(problem.strerror or 'cannot be read').lower()}") from problem
    except SyntaxError as problem:
        raise UserError(f"{path}:{problem.lineno or 1}: not Python: {problem.msg}") from problem
    except (ValueError, RecursionError, MemoryError) as problem:
        raise UserError(f"{path}: not Python: {problem}") from problem
    facts = facts_of(tree)
    shape = shape_of(facts)
    text = TEXTS[shape]
    changes = tuple(sorted(set(_changes(shape, facts)), key=lambda change: change.line))
    return ScriptReport(
        script=str(path),
        shape=shape.value,
        title=text.title,
        elastic=_verdict(shape),
        changes=changes,
        guide=f"docs/{text.guide}",
        traits=tuple(traits(facts)),
    )


def _verdict(shape: Shape) -> str:
    if shape is Shape.JOINED:
        return "yes"
    fixed = (Shape.SHARDED, Shape.NO_OPTIMIZER, Shape.NOT_TRAINING)
    return "no" if shape in fixed else "after changes"


def traits(facts: Facts) -> Iterator[str]:
    if any(
        facts.named("DistributedDataParallel", "DDP", "DistributedSampler", "init_process_group")
    ):
        yield "ddp"
    if facts.accumulates:
        yield "accumulation"
    if any(facts.named("AveragedModel")) or any("ema" in name.split("_") for name in facts.names):
        yield "ema"
    if any(facts.named("GradScaler", "autocast")):
        yield "amp"
    if any(facts.named("clip_grad_norm_", "clip_grad_value_")):
        yield "clip"
    if schedules(facts):
        yield "schedule"
    if any(facts.named("torch.load", "load_state_dict")):
        yield "checkpoints"
    if any(facts.named("torch.compile")):
        yield "compile"


def _changes(shape: Shape, facts: Facts) -> Iterator[Change]:
    match shape:
        case Shape.JOINED | Shape.NOT_TRAINING:
            return
        case Shape.NO_OPTIMIZER:
            yield from _at(
                facts.methods("backward"), "a torch.optim optimizer must make the update"
            )
        case Shape.STREAMING:
            yield from _at(streams(facts), "give it to ones.join: each worker reads its own shards")
            yield from _loop_changes(shape, facts)
        case Shape.SHARDED:
            found = facts.named("FullyShardedDataParallel", "fully_shard", "initialize")
            yield from _at(found, "keep it: submit with --gpus N")
        case Shape.TRAINER:
            wraps = "ones.integrations.transformers.elastic(trainer) after this line"
            yield from _at(trainers(facts), wraps)
        case Shape.ACCELERATE:
            yield from _at(
                facts.named("Accelerator"),
                "from ones.integrations.accelerate import Accelerator",
            )
        case Shape.LIGHTNING:
            yield from _at(facts.named("Trainer"), 'Trainer(strategy="ones", ...)')
        case _:
            yield from _loop_changes(shape, facts)


def _loop_changes(shape: Shape, facts: Facts) -> Iterator[Change]:
    updated = optimizers(facts)
    first = min(updated.values(), key=lambda call: call.line)
    names = ", ".join(updated)
    if shape is Shape.SEVERAL:
        yield Change(first.line, names, "job = ones.join([models], [optimizers], ...)")
    else:
        yield Change(
            first.line, first.name, f"job = ones.join(model, {names}, ...); job.step(loss)"
        )
    loaders = [call for call in facts.named("DataLoader") if "train" in _text(call)] or list(
        facts.named("DataLoader")
    )
    yield from _at(loaders[:1], "job.loader(...) for the training data")
    if shape is Shape.STEPS and (loop := training_loop(facts)):
        yield Change(loop.line, loop.source, "for batch in job.steps(total):")
    else:
        for loop in [loop for loop in facts.loops if "epoch" in loop.source.lower()][:1]:
            yield Change(loop.line, loop.source, "for epoch in job.epochs(n):")
    yield from _at(
        [call for call in facts.methods("backward") if call.loops], "job.backward(loss) or job.step"
    )
    yield from _at([c for c in facts.methods("zero_grad") if c.loops], "drop it: job.step does it")
    yield from _at(schedules(facts), "ones.join(..., scheduler=...): do not call it")
    yield from _at(facts.named("GradScaler"), "ones.join(..., scaler=...)")
    yield from _at(facts.named("clip_grad_norm_"), "job.step(loss, clip=...)")
    yield from _at(
        facts.named("DistributedDataParallel", "DDP", "DataParallel", "init_process_group"),
        "drop it: pass the model itself",
    )
    yield from _at(facts.named("DistributedSampler"), "drop it: job.loader divides the samples")
    yield from _at(facts.named("AveragedModel"), "job.also(ema=...): kept when workers change")
    for line in facts.sets_rate:
        yield Change(
            line, "the learning rate is set", "ones.join(..., scheduler=...) with a LambdaLR"
        )
    for line in facts.modulo_steps:
        yield Change(line, "update under if n % k", "drop the if: ONES accumulates by itself")


def _at(calls: Iterator[Call] | list[Call], do: str) -> Iterator[Change]:
    for call in calls:
        yield Change(call.line, call.name, do)


def _text(call: Call) -> str:
    return " ".join((*call.arguments, *call.keywords)).lower()
