"""`ones bench convergence`: what it computes from curves, and that it trains for real."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from docs.reference.results import CONVERGENCE_ROW_KEYS
from ones.cli.app import app
from ones.errors import WorldError
from ones.lab.bench import convergence as bench
from ones.lab.bench.convergence import CASES, CHANGE, Curve, epochs_to_recover, peak_loss, spread


def curve(*after: float, before: float = 0.1) -> Curve:
    losses = [1.0] * (CHANGE - 1) + [before, *after]
    return [{"seed": 1, "epoch": n, "loss": loss, "accuracy": 0.9} for n, loss in enumerate(losses)]


def test_a_spike_is_its_height_and_the_epochs_above() -> None:
    spiky = curve(0.9, 2.0, 0.3, 0.1, 0.4)
    assert peak_loss(spiky) == 2.0
    assert epochs_to_recover(spiky) == 3.0
    assert epochs_to_recover(curve(0.05, 0.2)) == 0.0
    assert epochs_to_recover(curve(0.5, 0.2)) == 2.0  # not within the run


def test_what_diverged_is_infinite_inside_and_null_outside() -> None:
    peak = peak_loss(curve(0.5, float("nan"), 0.2))
    assert peak == float("inf")
    assert spread("peak_loss", [peak, 1.0]) == {
        "peak_loss": None,
        "peak_loss_low": 1.0,
        "peak_loss_high": None,
    }


def test_the_cases_are_those_of_the_paper() -> None:
    named = {case.name: case.batches for case in CASES}
    assert len(named) == len(CASES)
    assert named["x16 at once"] == "0:32,8:512"
    assert named["x4 twice, 8 epochs apart"] == "0:32,8:128,16:512"
    assert named["16 x 32, rate unchanged"] == "0:512"


def test_without_a_checkout_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bench, "SCRIPT", tmp_path / "batch_growth.py")
    with pytest.raises(WorldError, match="not there; run this from a checkout"):
        bench.bench_convergence(quick=True)


def test_a_script_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "batch_growth.py"
    script.write_text("raise SystemExit('no module named mlxtend')")
    monkeypatch.setattr(bench, "SCRIPT", script)
    with pytest.raises(WorldError, match="ended with 1: no module named mlxtend"):
        bench.bench_convergence(quick=True)


@pytest.mark.soak
def test_real_training_shows_what_the_paper_says(tmp_path: Path) -> None:
    arguments = ["bench", "convergence", "--quick", "--seeds", "1", "--json"]
    done = CliRunner().invoke(app, [*arguments, "--curves", str(tmp_path / "curves.json")])
    assert done.exit_code == 0, done.output
    rows = {row["case"]: row for row in json.loads(done.stdout)["rows"]}
    # more workers with the same local batch need more epochs, unless the rate follows
    few, many = rows["4 x 32, rate unchanged"], rows["16 x 32, rate unchanged"]
    assert 1.5 < few["ratio"] < many["ratio"]
    assert rows["4 x 32, rate follows"]["ratio"] < few["ratio"]
    assert rows["1 to 16 x 32, doubled each epoch, rate follows"]["ratio"] < many["ratio"] / 2
    # a jump spikes the loss, gradual growth does not
    jump = rows["x16 at once"]
    assert jump["peak_loss"] > 2 * jump["loss_before"]
    assert rows["x4 twice, 8 epochs apart"]["peak_loss"] < jump["peak_loss"] / 2
    found = {key.removesuffix("_low").removesuffix("_high") for row in rows.values() for key in row}
    assert found == set(CONVERGENCE_ROW_KEYS)
    kept = json.loads((tmp_path / "curves.json").read_text())
    assert len(kept["x16 at once"][0]) == bench.EPOCHS
