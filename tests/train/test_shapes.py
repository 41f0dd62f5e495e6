"""Each shape of script in examples/shapes ends where the script before it ended.

The parameters are in float64. What differs is the order in which gradients are added up.
"""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed

from tests.train.elastic import elastic

dist: Any = torch.distributed

SHAPES = Path(__file__).parents[2] / "examples" / "shapes"
TOLERANCE = 1e-9
NAMES = ["epochs", "ddp", "steps", "accumulation", "average", "gan", "stream"]


def numbers(output: str) -> list[float]:
    """Those of the line with which a script ends."""
    (line,) = (line for line in output.splitlines() if line.startswith("loss "))
    return [float(number) for number in re.findall(r"\d+\.\d+", line)]


def run_here(name: str, capsys: pytest.CaptureFixture[str]) -> list[float]:
    capsys.readouterr()
    runpy.run_path(str(SHAPES / name), run_name="__main__")
    return numbers(capsys.readouterr().out)


@pytest.fixture
def before(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> list[float]:
    """The end of the script before it became elastic."""
    monkeypatch.syspath_prepend(str(SHAPES))
    monkeypatch.setattr(sys, "argv", ["script"])
    name = request.getfixturevalue("name")
    if name == "ddp":  # as torchrun starts it
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        environment = {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1"}
        for key, value in {**environment, "MASTER_PORT": store.port}.items():
            monkeypatch.setenv(key, str(value))
        monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    return run_here(f"{name}_before.py", capsys)


@pytest.mark.parametrize("name", NAMES)
def test_it_ends_as_before_alone_and_while_workers_come_and_go(
    name: str,
    before: list[float],
    zygote: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    alone = run_here(f"{name}.py", capsys)
    assert alone == pytest.approx(before, rel=TOLERANCE)
    job = elastic(zygote, tmp_path, "0:1x16,8:2x16,20:1x16", SCRIPT=str(SHAPES / f"{name}.py"))
    outcome = job.play()
    assert [len(s.members) for _, s in outcome.switches] == [1, 2, 1]
    assert numbers(job.output()) == pytest.approx(before, rel=TOLERANCE)
    job.nothing_is_left()
