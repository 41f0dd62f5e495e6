"""The runs of a comparison and their keys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ones.errors import InvalidFileError, InvalidSettingError, UnknownNameError, UserError
from ones.lab.comparison import grid as grid_module
from ones.lab.comparison.fingerprint import workload_fingerprint
from ones.lab.comparison.grid import Cell, Grid
from ones.lab.comparison.variants import parse_variants
from tests.lab.comparison.cells import SMALL, cells


def test_every_combination_is_there_seed_by_seed() -> None:
    found = cells("fifo", "equi", gpus=[16, 32], mechanisms=["elastic", "checkpoint"], loads=[0.5])
    assert len(found) == 2 * 2 * 2 * 2
    assert [cell.spec.seed for cell in found] == [5] * 8 + [6] * 8
    assert len({cell.key for cell in found}) == 16
    assert found[0].name == "fifo, seed 5, 16 GPUs, elastic, load 0.5"


def test_the_key_follows_all_that_the_run_depends_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = cells("fifo", seeds=1)[0]
    spec = cell.spec
    others = [
        replace(spec, seed=99), replace(spec, gpus=8), replace(spec, jobs=5),
        replace(spec, load=0.4), replace(spec, settings={"backfill": True}),
        replace(spec, mechanism="elastic"), replace(spec, policy="equi"), replace(spec, gap=9.0),
        replace(spec, physics={"noise": 3.0}), replace(spec, physics={"noise": 0.3}),
    ]  # fmt: skip
    keys = {Cell(label="x", asked="native", spec=other).key for other in [spec, *others]}
    assert len(keys) == len(others) + 1
    assert Cell(label="other", asked="checkpoint", spec=spec).key == cell.key
    monkeypatch.setattr(grid_module, "fingerprint", lambda policy: "other code")
    assert cells("fifo", seeds=1)[0].key != cell.key
    keys = set()
    for number, text in enumerate(["at,id,model\n0,a,alexnet-imagenet\n"] * 2 + ["other"]):
        file = tmp_path / f"{number}.csv"
        file.write_text(text)
        keys.add(workload_fingerprint(str(file)))
    assert len(keys) == 2


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mechanisms": ["magic"]}, UnknownNameError, "unknown mechanism 'magic'"),
        ({"gpus": [1]}, UserError, "more than the 1 GPUs of the cluster"),
        ({"seeds": []}, InvalidSettingError, "needs policies, seeds"),
        ({"loads": [-1.0]}, InvalidSettingError, "load: -1.0"),
        (
            {"base": replace(SMALL, workload="nowhere.csv")},
            InvalidFileError,
            "nowhere.csv: cannot be read",
        ),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(
    options: dict[str, Any], error: type[UserError], message: str
) -> None:
    grid = Grid(
        variants=parse_variants(["fifo"]), seeds=range(3), gpus=[16], base=replace(SMALL, jobs=50)
    )
    with pytest.raises(error, match=message):
        replace(grid, **options).cells()
