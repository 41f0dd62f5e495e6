"""Beyond the paper: which runs, in which order, and what is made of those that are there."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ones.cli import main
from ones.errors import InvalidFileError, UnknownNameError
from ones.lab.comparison.result_store import ResultStore
from ones.lab.comparison.tasks import run_task
from ones.lab.paper.sweep_results import read_panels, sweep_result, write_sweeps
from ones.lab.paper.sweeps import (
    DEFAULT_AGEING,
    FULL,
    QUICK,
    Sweep,
    SweepPart,
    commands,
    select_sweeps,
    sweeps,
)
from ones.policies.ones.settings import OnesSettings

TINY = Sweep(
    name="tiny",
    title="Tiny",
    question="Does it run?",
    parts=[
        SweepPart(policies=("ones", "equi"), seeds=2, jobs=3, gpus=8, loads=(0.5, 0.8),
             mechanisms=("elastic",))
    ],
)  # fmt: skip


def test_what_matters_most_comes_first_and_seeds_are_held_out() -> None:
    names = [sweep.name for sweep in sweeps(FULL, [Path("philly.csv")])]
    assert names == ["loads", "pollux", "physics", "predictor", "kinds", "harder", "rigid",
                     "trace-philly", "frontier", "sizes"]  # fmt: skip
    loads = sweeps(FULL)[0]
    assert {part.seeds for part in loads.parts} == {10}
    assert loads.parts[0].loads == (0.5, 0.8, 1.0, 1.2)
    assert loads.parts[0].jobs >= 200
    few = replace(loads, parts=[replace(loads.parts[0], seeds=2, jobs=2, loads=(0.5,))])
    seeds = [cell.spec.seed for cell in few.cells(1000)]
    assert seeds == sorted(seeds)
    assert seeds[0] == 1000
    assert all(part.seeds <= 2 for sweep in sweeps(QUICK) for part in sweep.parts)
    assert all(part.seeds <= 1 for s in sweeps(FULL.with_seeds(1)) for part in s.parts)
    with pytest.raises(UnknownNameError, match="unknown sweep 'load'; did you mean 'loads'"):
        select_sweeps(sweeps(FULL), ["load"])


def test_every_sweep_of_the_list_can_be_run() -> None:
    """Names, settings and factors are valid before the first run starts."""
    for sweep in sweeps(replace(QUICK, jobs=2)):
        cells = sweep.cells(1000)
        assert len({cell.key for cell in cells}) == len(cells)
    by_name = {sweep.name: sweep for sweep in sweeps(replace(QUICK, jobs=2))}
    errors = {c.spec.settings.get("prediction_error") for c in by_name["predictor"].cells(1)}
    assert errors == {None, 2.0, 4.0}
    line = {c.spec.settings.get("ageing") for c in by_name["frontier"].cells(1)}
    assert line == {None, 0.0, 0.25, 1.0, 2.0}
    assert OnesSettings().ageing == DEFAULT_AGEING, "which None stands for"
    worlds = [dict(c.spec.physics) for c in by_name["physics"].cells(1)]
    assert {"rescale": 10.0} in worlds
    assert {} not in worlds


@pytest.fixture
def kept(tmp_path: Path) -> ResultStore:
    found = ResultStore(tmp_path)
    for cell in TINY.cells(1000):
        found.add(cell.key, cell.name, run_task(cell.task, cell.spec))
    return found


def test_a_sweep_is_what_its_commands_do(
    kept: ResultStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for variable in [name for name in os.environ if name.startswith("ONES_")]:
        monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)
    told, command = commands([TINY], 1000, str(tmp_path))
    assert told == "# tiny: Tiny"
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 0
    assert f"{len(kept)} runs, {len(kept)} of them already stored" in capsys.readouterr().err


def test_tables_figures_and_panels_follow_from_what_is_kept(
    kept: ResultStore, tmp_path: Path
) -> None:
    found = sweep_result(TINY, kept, 1000, tmp_path)
    assert [lead["load"] for lead in found["leads"]] == [0.5, 0.8]
    assert found["figure"] == "figures/tiny.svg"
    page, tables, result = write_sweeps([found], "ones paper sweeps", tmp_path)
    text = page.read_text()
    assert "data:image/svg+xml;base64," in text
    assert found["sentence"].split("`")[0] in text
    assert "| load | seeds | mean s (95 %) | `equi` s |" in tables.read_text()
    assert json.loads(result.read_text())["rows"][0]["name"] == "tiny"
    (panel,) = read_panels(tmp_path)
    assert panel.anchor == "beyond-tiny"
    assert panel.ours == found["sentence"]
    assert "2 seeds of 3 jobs" in panel.n
    assert len(panel.parts) == 2
    nothing = sweep_result(TINY, ResultStore(None), 1000, tmp_path)
    assert nothing["leads"] == []
    assert nothing["table"] == []


def test_what_is_not_of_sweeps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidFileError, match=r"sweeps\.json: cannot be read"):
        read_panels(tmp_path)
    (tmp_path / "sweeps.json").write_text('{"rows": 3}')
    with pytest.raises(InvalidFileError, match="is not what `ones paper sweeps` writes"):
        read_panels(tmp_path)
