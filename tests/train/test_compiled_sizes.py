"""torch.compile makes one graph for all batch sizes of a job."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from ones.train.compiled_sizes import mark_batch
from tests.train.elastic import elastic


def graphs(sizes: list[int]) -> int:
    """Graphs of a model that is called with batches of these sizes."""
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(nn.Linear(3, 1), backend="eager")
    for size in sizes:
        batch = mark_batch({"x": torch.ones(size, 3), "name": "x"}, size)
        compiled(batch["x"]).sum().backward()
    return counters["stats"]["unique_graphs"]


def test_sizes_share_a_graph_unless_the_script_wants_static_shapes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert graphs([8, 6, 16]) == 1
    assert graphs([8, 1, 6]) == 2  # a batch of one has its own
    monkeypatch.setattr(torch._dynamo.config, "automatic_dynamic_shapes", False)
    assert graphs([8, 6, 16]) == 3


def test_a_rescaled_job_compiles_once_in_each_worker(zygote: str, tmp_path: Path) -> None:
    job = elastic(zygote, tmp_path, "0:1x16,8:2x24,20:1x40", SCRIPT="compiled.py")
    outcome = job.play()
    assert [len(s.members) for _, s in outcome.switches] == [1, 2, 1]
    found = re.findall(r"graphs (\d+) sizes \[(.*)\]", job.output())
    assert {count for count, _ in found} == {"1"}
    sizes = {int(size) for _, text in found for size in text.split(", ")}
    assert {16, 12, 20} <= sizes
