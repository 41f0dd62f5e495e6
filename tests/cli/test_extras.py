"""A command without its extra names the extra in one line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import typer.main

from docs.reference.cli import commands
from ones import cli
from ones.cli.app import app
from ones.extras import EXTRAS, extra_of

ROOT = Path(__file__).resolve().parents[2]

#: commands that need an extra: the words after `ones`, and what is missing without the extra
NEEDS = {
    "demo": ("ones demo", ["train", "serve", "examples"]),
    "up": ("ones up", ["serve"]),
    "up --foreground --policy fifo --launcher ray --address 127.0.0.1:1": (
        "--launcher ray",
        ["ray"],
    ),
    "up --foreground --slots 1 --policy fifo --database postgresql://ann@127.0.0.1:1/ones": (
        "database 'postgresql://ann@127.0.0.1:1/ones'",
        ["postgres"],
    ),
    "paper --quick --out paper": ("ones paper", ["report"]),
    "paper artifact --quick --out artifact": ("ones paper artifact", ["report"]),
    "paper readings --seeds 1 --out readings": ("ones paper readings", ["report"]),
    "paper sweeps --quick --out sweeps": ("ones paper", ["report"]),
    "trace inspect TRACE --picture trace.png": ("ones trace inspect", ["report"]),
    "trace physics resnet50-imagenet --out physics": ("ones trace physics", ["report"]),
    "trace record --out week.jsonl": ("ones trace record", ["serve"]),
    "bench convergence --quick": ("ones bench convergence", ["train", "examples"]),
    "bench rescale --quick": ("ones bench rescale", ["train"]),
    "bench overhead --quick": ("ones bench overhead", ["train"]),
    "bench fidelity --policies fifo": ("ones bench fidelity", ["train", "serve"]),
    "bench control --quick": ("ones bench control", ["train", "serve"]),
    "bench scale --workers 128 --seconds 1": ("ones bench scale", ["serve"]),
    "bench faults --seeds 1": ("ones bench faults", ["serve"]),
    "run --gpus 1 -- python -c pass": ("ones run --gpus", ["train", "serve"]),
    "doctor --gpu": ("ones doctor --gpu", ["train", "serve"]),
    "slurm serve --state slurm": ("ones slurm serve", ["serve"]),
    "store move postgresql://ann@127.0.0.1:1/ones": ("ones store move", ["serve"]),
}
#: commands that work without any extra; most of them end at once, without a service
CLIENTS = {
    "down": "service is",
    "submit -- python -c pass": "no service is running",
    "trace play TRACE --commands TRACE": "",
    "config": "",
    "doctor": "pip install 'ones[serve]'",
    "slurm script --nodes 1 --gpus-per-node 1 --time 1:00:00": "#SBATCH",
    "trace generate --jobs 2 --out small.csv": "2 jobs",
    "lab install --user ann": "ones-launchd",
    "lab uninstall": "ones-launchd",
    **dict.fromkeys(
        (
            *("link", "ps", "show a", "why a", "logs a", "cancel a", "top", "audit"),
            *("cluster", "cluster drain a/0", "cluster undrain a/0", "cluster history"),
            *("set a -p 1", "hold a", "release a", "rerun a", "wait a", "usage", "user budget"),
            *("notify add https://a", "notify list", "notify test 1", "notify remove 1"),
            *("user add ann", "user token ann", "user list", "user limit ann 8", "user remove ann"),
            *("user unix ann ann", "whatif --policy srtf", "slurm auto --max-nodes 2 --time 1h"),
        ),
        "no service is running",
    ),
}
#: commands of the base that take longer; `make release-check` runs `ones sim` from the base wheel
BASE = {
    *("run", "sim", "replay", "compare", "drl train"),
    *("bench sim", "bench search", "bench embed", "bench forecasts"),
}

PAIRS = [(command, extra) for command, (_, extras) in NEEDS.items() for extra in extras]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[int, str]]:
    """Exit code and output by command and missing extra; "" for all extras at once."""
    home = tmp_path_factory.mktemp("home")
    trace = str(ROOT / "docs" / "reference" / "examples" / "trace.csv")
    everything = [module for modules in EXTRAS.values() for module in modules]
    asked = {(command, extra): list(EXTRAS[extra]) for command, extra in PAIRS}
    asked |= {(command, ""): everything for command in CLIENTS}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("without_modules.py")],
        input=json.dumps(
            [(words.replace("TRACE", trace).split(), gone) for (words, _), gone in asked.items()]
        ),
        env={**os.environ, "HOME": str(home), "ONES_SERVICE_STATE": str(home / "state")},
        cwd=home, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = [(code, output) for code, output in json.loads(done.stdout)]
    return dict(zip(asked, found, strict=True))


def test_every_command_is_tried_here() -> None:
    tried = [f"ones {command} " for command in (*NEEDS, *CLIENTS, *BASE)]
    for name, _ in commands(typer.main.get_group(app)):
        assert any(words.startswith(f"{name} ") for words in tried), f"{name} is in no list"


@pytest.mark.parametrize(("command", "extra"), PAIRS)
def test_a_missing_extra_is_named_in_one_line(
    outcomes: dict[tuple[str, str], tuple[int, str]], command: str, extra: str
) -> None:
    code, output = outcomes[command, extra]
    what = NEEDS[command][0]
    expected = f"ones: {what} needs the extra {extra!r}: pip install 'ones[{extra}]'"
    assert output.splitlines()[-1:] == [expected]
    assert "Traceback" not in output
    assert code == (2 if extra == "postgres" else 1)


@pytest.mark.parametrize("command", CLIENTS)
def test_a_command_of_the_base_needs_no_extra(
    outcomes: dict[tuple[str, str], tuple[int, str]], command: str
) -> None:
    code, output = outcomes[command, ""]
    assert "Traceback" not in output
    assert CLIENTS[command] in output
    assert code in (0, 1, 2)


def test_a_module_of_no_extra_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> int:
        raise ModuleNotFoundError("No module named 'elsewhere'", name="elsewhere")

    monkeypatch.setattr(cli, "_run", run)
    with pytest.raises(ModuleNotFoundError, match="elsewhere"):
        cli.main()


def test_the_extras_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    modules: dict[str, list[str]] = {}
    for module, distributions in packages_distributions().items():
        for distribution in distributions:
            modules.setdefault(_normal(distribution), []).append(module)
    for extra, requirements in project["optional-dependencies"].items():
        if extra in ("all", "dev", "docs"):
            continue
        for requirement in requirements:
            (name,) = re.findall(r"^[\w.-]+", requirement)
            assert set(modules[_normal(name)]) & set(EXTRAS[extra]), requirement
    assert extra_of("sqlalchemy.orm") == "serve"
    assert extra_of("numpy") is None


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
