"""Loops of other libraries: each example against the same script without ONES, alone and elastic.

The example's lines with a mark are what ONES needs; without them it is the plain script.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHAPES = ROOT / "examples" / "shapes"
MARK = "# ones"
ENV = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
#: both scripts in one process, because importing these libraries takes seconds
BOTH = """
import runpy, sys
scripts, options = sys.argv[1:3], sys.argv[3:]
for script in scripts:
    sys.argv = [script, *options]
    runpy.run_path(script, run_name="__main__")
"""

#: example -> options, steps at which the second worker comes and goes, guide
CASES = {
    "hf_trainer.py": (["--samples", "400", "--save", "epoch"], (15, 35), "hugging-face.md"),
    "accelerate_loop.py": ([], (20, 60), "accelerate.md"),
    "lightning_fit.py": (["--accumulate", "2"], (20, 60), "lightning.md"),
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


@pytest.mark.parametrize("name", CASES)
def test_the_result_is_that_of_the_plain_script(name: str, tmp_path: Path) -> None:
    options, (grow, shrink), _ = CASES[name]
    script = tmp_path / "plain.py"
    script.write_text(plain((SHAPES / name).read_text()))
    assert "ones" not in re.findall(r"\w+", script.read_text().split('"""')[2])
    alone = tmp_path / "alone"
    alone.mkdir()
    scripts = [str(script), str(SHAPES / name)]
    output = run([sys.executable, "-c", BOTH, *scripts, *options], alone)
    expected, found = finals(output)
    assert found == pytest.approx(expected, rel=1e-6)
    schedule = f"0:1,{grow}:2,{shrink}:1"
    command = [sys.executable, "-m", "ones", "run", "--slots", "2", "--exact"]
    output = run(
        [*command, "--schedule", schedule, "--", sys.executable, str(SHAPES / name), *options],
        tmp_path,
    )
    assert f"step {grow}: 1 -> 2 workers" in output
    assert f"step {shrink}: 2 -> 1 workers" in output
    (found,) = finals(output)  # one worker prints
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_the_guide_says_how_many_lines_change(name: str) -> None:
    lines = [line for line in (SHAPES / name).read_text().splitlines() if MARK in line]
    guide = (ROOT / "docs" / "guides" / CASES[name][2]).read_text()
    assert f"Changed lines: {len(lines)}." in guide
    assert f"examples/shapes/{name}" in guide
