"""The known shapes of training scripts, and what each needs to become elastic."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ones.apps.script_check.facts import Call, Facts, Loop


class Shape(StrEnum):
    JOINED = "joined"
    TRAINER = "hf-trainer"
    ACCELERATE = "accelerate"
    LIGHTNING = "lightning"
    SHARDED = "sharded"
    SEVERAL = "several-optimizers"
    STREAMING = "streaming"
    STEPS = "steps"
    PLAIN = "plain"
    NO_OPTIMIZER = "no-optimizer"
    NOT_TRAINING = "not-training"


@dataclass(frozen=True, slots=True)
class ShapeText:
    title: str
    guide: str = ""  # page, below docs/


TEXTS = {
    Shape.JOINED: ShapeText("calls ones.join: it is elastic", "guides/train-your-script.md"),
    Shape.TRAINER: ShapeText("Hugging Face Trainer", "guides/hugging-face.md"),
    Shape.ACCELERATE: ShapeText("Accelerate loop", "guides/accelerate.md"),
    Shape.LIGHTNING: ShapeText("Lightning Trainer", "guides/lightning.md"),
    Shape.SHARDED: ShapeText(
        "sharded model (FSDP, DeepSpeed, DTensor): fixed size only", "guides/fixed-size.md"
    ),
    Shape.SEVERAL: ShapeText("loop with several optimizers", "guides/script-shapes.md"),
    Shape.STREAMING: ShapeText("loop over a stream of data", "guides/script-shapes.md"),
    Shape.STEPS: ShapeText("loop over steps", "guides/script-shapes.md"),
    Shape.PLAIN: ShapeText("loop over epochs", "guides/script-shapes.md"),
    Shape.NO_OPTIMIZER: ShapeText(
        "training without a torch optimizer: fixed size only", "guides/fixed-size.md"
    ),
    Shape.NOT_TRAINING: ShapeText("no training loop found", "guides/fixed-size.md"),
}

_SHARDED = ("FullyShardedDataParallel", "fully_shard", "deepspeed.initialize", "parallelize_module")
_STREAMS = ("IterableDataset", "IterableDatasetDict", "webdataset.WebDataset", "WebLoader")


def shape_of(facts: Facts) -> Shape:
    if any(facts.named("ones.join")) or facts.imports("ones.integrations"):
        return Shape.JOINED
    if any(facts.named(*_SHARDED)) or facts.imports("deepspeed"):
        return Shape.SHARDED
    if facts.imports("lightning", "pytorch_lightning") and (
        any(facts.named("Trainer", "LightningCLI")) or facts.has_base("LightningModule")
    ):
        return Shape.LIGHTNING
    if facts.imports("transformers", "trl") and (trainers(facts) or facts.has_base("Trainer")):
        return Shape.TRAINER
    if any(facts.named("Accelerator")):
        return Shape.ACCELERATE
    if not [call for call in facts.methods("backward") if call.loops]:
        return Shape.NOT_TRAINING
    updated = optimizers(facts)
    if not updated:
        return Shape.NO_OPTIMIZER
    if len(updated) > 1:
        return Shape.SEVERAL
    if streams(facts):
        return Shape.STREAMING
    return Shape.STEPS if counts_steps(facts) else Shape.PLAIN


def trainers(facts: Facts) -> list[Call]:
    return [c for c in facts.calls if c.method.endswith("Trainer") and c.method[0].isupper()]


def optimizers(facts: Facts) -> dict[str, Call]:
    """The optimizers that are stepped in a loop, by their names, with the first call."""
    found: dict[str, Call] = {}
    reset = {call.receiver for call in facts.methods("zero_grad")}
    for call in facts.methods("step"):
        receiver = call.receiver
        if call.arguments and "scal" in receiver.lower():  # scaler.step(optimizer)
            receiver = call.arguments[0]
        made = facts.made_by.get(receiver, "")
        is_schedule = "sched" in receiver.lower() or "lr_scheduler" in made
        is_optimizer = ".optim" in made or receiver in reset or "opt" in receiver.lower()
        if is_optimizer and not is_schedule:
            found.setdefault(receiver, call)
    in_loop = {name: call for name, call in found.items() if call.loops}
    return in_loop or found


def schedules(facts: Facts) -> list[Call]:
    return [
        call
        for call in facts.methods("step")
        if "sched" in call.receiver.lower()
        or "lr_scheduler" in facts.made_by.get(call.receiver, "")
        or "get_scheduler" in facts.made_by.get(call.receiver, "")
    ]


def streams(facts: Facts) -> list[Call]:
    found = [c for c in facts.named("load_dataset") if "streaming" in c.keywords]
    if facts.has_base("IterableDataset"):
        found += list(facts.named("DataLoader"))[:1]
    return found + list(facts.named(*_STREAMS))


def counts_steps(facts: Facts) -> bool:
    """Whether the training loop counts steps and not epochs."""
    if any("epoch" in loop.source.lower() for loop in facts.loops):
        return False
    return training_loop(facts) is not None


def training_loop(facts: Facts) -> Loop | None:
    """The outermost loop around an update that counts steps, or has no end."""
    for call in optimizers(facts).values():
        for loop in call.loops:
            words = loop.source.lower()
            if words.startswith("while") or "step" in words or "iter" in words:
                return loop
    return None
