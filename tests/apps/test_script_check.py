"""`ones doctor --script`: public scripts, in short, and what would have to change in each."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ones.apps.script_check import check_script
from ones.apps.script_check.shapes import TEXTS
from ones.errors import UserError

ROOT = Path(__file__).parents[2]

#: loops in the shape of well-known scripts: name -> (shape, traits, source)
SCRIPTS = {
    "a function for each epoch": (
        "plain",
        ("schedule",),
        """
        import torch.optim as optim
        from torch.optim.lr_scheduler import StepLR

        def train(model, loader, optimizer):
            for n, (x, y) in enumerate(loader):
                optimizer.zero_grad()
                loss = f(model(x), y)
                loss.backward()
                optimizer.step()

        optimizer = optim.Adadelta(model.parameters())
        scheduler = StepLR(optimizer, 1)
        for epoch in range(1, 15):
            train(model, loader, optimizer)
            scheduler.step()
        """,
    ),
    "distributed data parallel": (
        "plain",
        ("ddp",),
        """
        import torch
        from torch.nn.parallel import DistributedDataParallel as DDP
        model = DDP(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for epoch in range(90):
            for x, y in loader:
                loss = criterion(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        """,
    ),
    "a rate of its own, accumulation, a scaler": (
        "steps",
        ("accumulation", "amp", "clip"),
        """
        import torch
        scaler = torch.amp.GradScaler(enabled=False)
        optimizer = model.configure_optimizers()
        while True:
            for param_group in optimizer.param_groups:
                param_group['lr'] = rate(step)
            for micro_step in range(gradient_accumulation_steps):
                scaler.scale(model(x, y)).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            if step > max_iters:
                break
        """,
    ),
    "a generator and a critic": (
        "several-optimizers",
        (),
        """
        import torch.optim as optim
        first, second = optim.Adam(d.parameters()), optim.Adam(g.parameters())
        for epoch in range(25):
            for data in loader:
                d.zero_grad()
                loss(d(data)).backward()
                first.step()
                g.zero_grad()
                loss(d(g(noise))).backward()
                second.step()
        """,
    ),
    "a stream": (
        "streaming",
        (),
        """
        import torch
        from datasets import load_dataset
        data = load_dataset("text", streaming=True)
        optimizer = torch.optim.AdamW(model.parameters())
        for batch in data:
            model(batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
    ),
    "Hugging Face Trainer": (
        "hf-trainer",
        (),
        """
        from transformers import Trainer, TrainingArguments
        trainer = Trainer(model=model, args=TrainingArguments("out"), train_dataset=data)
        trainer.train()
        """,
    ),
    "Accelerate": (
        "accelerate",
        (),
        """
        from accelerate import Accelerator
        accelerator = Accelerator()
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        for epoch in range(3):
            for batch in loader:
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()
        """,
    ),
    "Lightning": (
        "lightning",
        (),
        """
        import lightning as L
        class Net(L.LightningModule): ...
        L.Trainer(max_epochs=3).fit(Net(), loader)
        """,
    ),
    "a sharded model": (
        "sharded",
        (),
        """
        from torch.distributed.fsdp import fully_shard
        fully_shard(model)
        for epoch in range(3):
            loss.backward()
            optimizer.step()
        """,
    ),
    "an update by hand": (
        "no-optimizer",
        (),
        """
        for epoch in range(3):
            for x, y in batches:
                model.zero_grad()
                f(model(x), y).backward()
                for p in model.parameters():
                    p.data.add_(p.grad, alpha=-lr)
        """,
    ),
    "an evaluation": ("not-training", (), "import torch\nprint(model(x))\n"),
    "elastic": ("joined", (), "import ones\njob = ones.join(model, optimizer, data, 32)\n"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_shape_of_a_script_is_known_and_has_a_guide(name: str, tmp_path: Path) -> None:
    shape, traits, source = SCRIPTS[name]
    script = tmp_path / "train.py"
    script.write_text(dedent(source))
    report = check_script(script)
    assert (report.shape, report.traits) == (shape, traits)
    if report.elastic == "after changes":
        assert report.changes
    lines = script.read_text().count("\n")
    assert all(1 <= change.line <= lines for change in report.changes)


def test_every_guide_is_a_page() -> None:
    for text in TEXTS.values():
        assert (ROOT / "docs" / text.guide).is_file(), text.guide


def test_each_line_that_would_be_silently_wrong_is_named(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(dedent(SCRIPTS["a rate of its own, accumulation, a scaler"][2]))
    found = {(change.line, change.found) for change in check_script(script).changes}
    assert {(5, "while True"), (7, "the learning rate is set")} <= found
    assert {(4, "model.configure_optimizers")} & found == set()


def test_the_plain_example_changes_where_its_elastic_twin_differs() -> None:
    report = check_script(ROOT / "examples" / "plain_digits.py")
    assert (report.shape, report.elastic) == ("plain", "after changes")
    assert check_script(ROOT / "examples" / "digits.py").elastic == "yes"


def refusal(script: Path) -> str:
    try:
        check_script(script)
    except UserError as problem:
        return str(problem)
    return ""


@given(st.binary(max_size=60))
def test_a_file_that_is_not_python_is_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    script = tmp_path_factory.mktemp("script") / "train.py"
    script.write_bytes(data)
    assert "\n" not in refusal(script)


def test_a_script_is_never_run(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit(3)\n")
    check_script(script)
    assert not (tmp_path / "ran").exists()
    with pytest.raises(UserError, match="no such file"):
        check_script(tmp_path / "missing.py")
