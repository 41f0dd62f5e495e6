"""Each shape of script under a real service, resized 1 -> 2 -> 1 by `ones set`.

The scripts are the examples, with one added line that slows their steps down until the test has
seen both changes. Workers compare their parameters in every step: a job that ends well had equal
replicas.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ones.control.statedir import StateDir
from tests.integrations.test_shapes import CASES, ENV, SHAPES, finals, plain, run
from tests.processes import PATIENCE, alive_below, wait_for
from tests.train.test_shapes import NAMES, before, numbers

__all__ = ["before"]

pytestmark = pytest.mark.slow
SECONDS = 300.0
#: each step takes longer than the one before, until the test has seen both changes
PACE = """
import os, time
from torch.optim.optimizer import register_optimizer_step_post_hook
seconds = 0.05
def wait(*_):
    global seconds
    if not os.path.exists(os.environ["HURRY"]):
        time.sleep(seconds)
        seconds = min(5.0, seconds * 1.2)
register_optimizer_step_post_hook(wait)
"""


class Service:
    """`ones up` in a directory of its own."""

    def __init__(self, root: Path) -> None:
        self.root, self.dir = root, StateDir(root / "state")

    def ones(self, *words: str, **env: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "ones", *words], cwd=self.root, capture_output=True, text=True,
            env={**ENV, "OMP_NUM_THREADS": "1", "ONES_SERVICE_PORT": "0", **env},
            timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
        return done.stdout

    def up(self) -> None:
        self.ones("up", "--dir", str(self.dir.path), "--slots", "2", "--policy", "equi")
        address = self.dir.address()
        assert address is not None
        token = {"Authorization": f"Bearer {self.dir.read_token()}"}
        self.http = httpx.Client(base_url=address.url, headers=token, timeout=PATIENCE)

    def down(self) -> None:
        self.http.close()
        self.ones("down", "--dir", str(self.dir.path))
        wait_for(lambda: not alive_below(self.root), f"left: {alive_below(self.root)}")

    def get(self, path: str) -> Any:  # noqa: ANN401
        answer = self.http.get(f"/api/jobs/{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def output(self, job: str) -> str:
        launches = self.get(f"{job}/launches")
        return "".join(
            self.http.get(f"/api/jobs/{job}/launches/{launch['id']}/log").text
            for launch in launches
        )

    def wait_workers(self, job: str, count: int) -> None:
        """Until the job has trained with this number of workers."""

        def card() -> Any:  # noqa: ANN401
            card = self.get(job)
            assert card["ended_at"] is None, self.output(job)[-3000:]
            return card

        wait_for(lambda: (c := card())["state"] == "running" and c["gpus"] == count,
                 f"{job} has not {count} workers", SECONDS)  # fmt: skip

    def resized(self, script: Path, *options: str) -> str:
        """Output of a job that had 1, 2 and again 1 worker."""
        hurry = script.with_name("hurry")
        job = self.ones(
            "submit", "--dir", str(self.dir.path), "--max-gpus", "1", "--fixed-batch", "--cwd",
            str(script.parent), "--env", f"HURRY={hurry}", "--",
            sys.executable, str(script), *options,
        ).split()[-1]  # fmt: skip
        self.wait_workers(job, 1)
        for most in (2, 1):
            self.ones("set", "--dir", str(self.dir.path), job, "--max-gpus", str(most))
            self.wait_workers(job, most)
        hurry.touch()
        wait_for(lambda: self.get(job)["ended_at"] is not None, f"{job} does not end", SECONDS)
        card = self.get(job)
        assert card["state"] == "finished", self.output(job)[-3000:]
        assert {batch for _, batch in self.get(f"{job}/curves")["batch"]} == {card["batch"]}
        return self.output(job)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(tmp_path_factory.mktemp("service"))
    service.up()
    yield service
    service.down()


def paced(directory: Path, name: str) -> Path:
    """The example with the line that slows it down."""
    (directory / "pace.py").write_text(PACE)
    shutil.copy(SHAPES / "task.py", directory)
    script = directory / name
    text = (SHAPES / name).read_text()
    assert text.count("\nimport torch\n") == 1
    script.write_text(text.replace("\nimport torch\n", "\nimport pace\nimport torch\n"))
    return script


@pytest.mark.parametrize("name", NAMES)
def test_a_loop_of_its_own_ends_as_before(
    name: str, before: list[float], service: Service, tmp_path: Path
) -> None:
    found = numbers(service.resized(paced(tmp_path, f"{name}.py")))
    assert found == pytest.approx(before, rel=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_a_loop_of_another_library_ends_as_the_plain_script(
    name: str, service: Service, tmp_path: Path
) -> None:
    script = tmp_path / "plain.py"
    script.write_text(plain((SHAPES / name).read_text()))
    (expected,) = finals(run([sys.executable, str(script)], tmp_path))
    (found,) = finals(service.resized(paced(tmp_path, name)))
    assert found == pytest.approx(expected, rel=1e-5)
