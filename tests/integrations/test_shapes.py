"""Loops of other libraries: each example against the same script without ONES, alone and elastic.

The example's lines with a mark are what ONES needs; without them it is the plain script.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHAPES = ROOT / "examples" / "shapes"
MARK = "# ones"
ENV = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
#: scripts in one process, because importing these libraries takes seconds
SCRIPTS = """
import json, runpy, sys
for command in json.loads(sys.argv[1]):
    sys.argv = command
    runpy.run_path(command[0], run_name="__main__")
"""


@dataclass(frozen=True)
class Case:
    """An example. The last step of its epochs has fewer batches, and the last batch is short."""

    options: list[str]
    resume: list[str]  # options that continue after the first epoch of the run before
    changes: tuple[int, int]  # steps at which the second worker comes and goes
    guide: str


CASES = {
    "hf_trainer.py": Case(
        ["--samples", "397", "--accumulate", "2", "--save", "epoch"],
        ["--resume", "hf_trainer_output/checkpoint-20"],
        (22, 35),
        "hugging-face.md",
    ),
    "accelerate_loop.py": Case(
        ["--accumulate", "2", "--save", "saved"],
        ["--load", "saved/epoch0", "--start", "1"],
        (45, 70),
        "accelerate.md",
    ),
    "lightning_fit.py": Case(["--accumulate", "2"], [], (45, 70), "lightning.md"),
}


def plain(script: str) -> str:
    """The script without ONES: a line with a mark is dropped, or is what its comment says."""
    kept = []
    for line in script.splitlines():
        code, mark, was = line.partition(MARK)
        if not mark:
            kept.append(line)
        elif was.startswith(": "):
            kept.append(code[: len(code) - len(code.lstrip())] + was[2:])
    return "\n".join(kept) + "\n"


def run(command: list[str], directory: Path) -> str:
    done = subprocess.run(
        command, cwd=directory, env=ENV, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def finals(output: str) -> list[list[float]]:
    """The numbers of each line with the final result."""
    lines = [line for line in output.splitlines() if "final:" in line]
    return [
        [float(n) for n in re.findall(r"\d+(?:\.\d+)?", line.split("final:")[1])] for line in lines
    ]


def losses(output: str) -> list[float]:
    """Those that the Trainer logged."""
    return [float(n) for n in re.findall(r"'loss': '([\d.]+)'", output)]


@pytest.mark.parametrize("name", CASES)
def test_the_result_is_that_of_the_plain_script(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    options, (grow, shrink) = case.options, case.changes
    script = tmp_path / "plain.py"
    script.write_text(plain((SHAPES / name).read_text()))
    assert "ones" not in re.findall(r"\w+", script.read_text().split('"""')[2])
    alone = tmp_path / "alone"
    alone.mkdir()
    example = str(SHAPES / name)
    commands = [[str(script), *options], [example, *options]]
    if case.resume:
        commands.append([example, *options, *case.resume])
    output = run([sys.executable, "-c", SCRIPTS, json.dumps(commands)], alone)
    expected, *found = finals(output)
    for numbers in found:
        assert numbers == pytest.approx(expected, rel=1e-6)
    logged = losses(output)
    count = len(logged) * 3 // 8  # of a run of 3 epochs; the resumed one has 2
    assert logged[count : 2 * count] == logged[:count]
    assert logged[2 * count :] == logged[count - len(logged) + 2 * count : count]
    schedule = f"0:1,{grow}:2,{shrink}:1"
    command = [sys.executable, "-m", "ones", "run", "--slots", "2", "--exact"]
    output = run(
        [*command, "--schedule", schedule, "--", sys.executable, str(SHAPES / name), *options],
        tmp_path,
    )
    assert f"step {grow}: 1 -> 2 workers" in output
    assert f"step {shrink}: 2 -> 1 workers" in output
    (last,) = finals(output)  # one worker prints
    assert last == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_the_guide_says_how_many_lines_change(name: str) -> None:
    lines = [line for line in (SHAPES / name).read_text().splitlines() if MARK in line]
    guide = (ROOT / "docs" / "guides" / CASES[name].guide).read_text()
    assert f"Changed lines: {len(lines)}." in guide
    assert f"examples/shapes/{name}" in guide
