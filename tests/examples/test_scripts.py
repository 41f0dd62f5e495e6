"""The examples run as their users run them, and do what their pages say."""

from __future__ import annotations

import difflib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
SLOW = pytest.mark.slow

#: small images where the network can take them
SCRIPTS = [
    ("resnet18_cifar10", ()),
    ("resnet50_imagenet", ("--image-size", "64")),
    pytest.param("googlenet_cifar10", (), marks=SLOW),
    pytest.param("vgg16_cifar10", ("--amp",), marks=SLOW),
    pytest.param("alexnet_imagenet", ("--image-size", "64"), marks=SLOW),
    pytest.param("vgg16_imagenet", ("--image-size", "32"), marks=SLOW),
    pytest.param("inceptionv3_imagenet", (), marks=SLOW),
    pytest.param("bert_cola", ("--length", "16"), marks=SLOW),
    pytest.param("bert_mrpc", ("--length", "16"), marks=SLOW),
    pytest.param("bert_sst2", ("--length", "16"), marks=SLOW),
]


def output_of(script: Path, *arguments: str) -> str:
    command = [sys.executable, "-W", "error", str(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def accuracies(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"accuracy (\d\.\d+)", text)]


@pytest.mark.parametrize(("name", "more"), SCRIPTS)
def test_a_script_of_the_workload_makes_two_steps(name: str, more: tuple[str, ...]) -> None:
    small = ("--samples", "4", "--batch-size", "2", "--epochs", "1")
    told = output_of(EXAMPLES / "paper" / f"{name}.py", *small, *more)
    assert told.startswith("epoch 0: 2 steps, accuracy ")


def test_a_script_of_the_workload_refuses_in_one_line(tmp_path: Path) -> None:
    script = EXAMPLES / "paper" / "resnet18_cifar10.py"
    command = [sys.executable, str(script), "--data", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {tmp_path}/data_batch_1: no such file")
    assert done.stderr.count("\n") == 1


def test_the_plain_and_the_elastic_script_learn_alike() -> None:
    plain, elastic = (
        accuracies(output_of(EXAMPLES / f"{name}.py", "--epochs", "2"))
        for name in ("plain_digits", "digits")
    )
    assert len(plain) == len(elastic) == 2
    assert elastic[1] == pytest.approx(plain[1], abs=0.15)  # other shuffles of the same data
    assert elastic[1] > 0.6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments", "reaches"),
    [
        ("digits", (), 0.99),
        ("mnist", (), 0.97),
        ("stress", ("--epochs", "2"), 0.78),
        ("topics", ("--epochs", "1"), 0.7),
    ],
)
def test_real_data_is_learned(name: str, arguments: tuple[str, ...], reaches: float) -> None:
    found = accuracies(output_of(EXAMPLES / f"{name}.py", *arguments))
    assert found[-1] >= reaches


@pytest.mark.slow
def test_an_example_goes_on_while_its_workers_come_and_go(tmp_path: Path) -> None:
    schedule = ("--slots", "2", "--schedule", "0:1,20:2,60:1", "--exact", "--dir", str(tmp_path))
    script = (sys.executable, str(EXAMPLES / "digits.py"), "--epochs", "2")
    command = [str(Path(sys.executable).with_name("ones")), "run", *schedule, "--", *script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "1 -> 2 workers" in done.stderr
    assert "2 -> 1 workers" in done.stderr
    found = accuracies(done.stdout)
    assert len(found) == 2
    assert found[1] > 0.6


def test_a_growing_batch_takes_fewer_steps() -> None:
    told = output_of(EXAMPLES / "batch_growth.py", "--batches", "0:100,1:400", "--epochs", "2")
    rows = [json.loads(line) for line in told.splitlines()]
    assert [(row["batch"], row["steps"]) for row in rows] == [(100, 40), (400, 50)]


def shown_diff() -> str:
    plain, elastic = (
        (EXAMPLES / f"{name}.py").read_text().splitlines(keepends=True)
        for name in ("plain_digits", "digits")
    )
    return "".join(difflib.unified_diff(plain, elastic, "plain_digits.py", "digits.py"))


def test_the_diff_of_the_guide_is_the_real_one() -> None:
    """To renew: diff -u -L plain_digits.py -L digits.py examples/{plain_digits,digits}.py."""
    assert (ROOT / "docs" / "guides" / "elastic.diff").read_text() == shown_diff()


@pytest.mark.parametrize("page", ["README.md", "docs/guides/train-your-script.md"])
def test_pages_show_the_real_diff(page: str) -> None:
    if not (ROOT / page).exists():
        pytest.skip(f"{page} is not written yet")
    shown = re.findall(r"^```diff\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    for block in shown:
        assert block in shown_diff()
