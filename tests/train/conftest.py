from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.train.forks import start_zygote

# scripts: they run in workers, not here
collect_ignore = [
    "scripts/emulated_device.py",
    "scripts/loops.py",
    "scripts/planted_fault.py",
    "scripts/regress.py",
]


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = str(tmp_path_factory.mktemp("z") / "s")
    process = start_zygote(path)
    yield path
    process.terminate()
    assert process.wait(60) == 0
