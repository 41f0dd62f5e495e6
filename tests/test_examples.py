"""Properties are tested with the same examples in every run, on every machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
DRAW = """
import sys
from hypothesis import given, strategies as st
import tests.conftest

if sys.argv[1:]:
    sys.path.append(sys.argv[1])
    import constants

@given(st.tuples(*[st.integers(), st.floats(), st.text(), st.sampled_from("abc")] * 8))
def draw(values):
    print(ascii(values))

draw()
"""


def drawn(*directories: Path, profile: str, hash_seed: str = "random") -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", DRAW, *directories], cwd=ROOT,
        env={**os.environ, "HYPOTHESIS_PROFILE": profile, "PYTHONHASHSEED": hash_seed},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_examples_depend_neither_on_hashes_nor_on_loaded_modules(tmp_path: Path) -> None:
    numbers = [1_000_003 * i for i in range(1, 200)]
    (tmp_path / "constants.py").write_text(f"NUMBERS = {numbers}\nWORD = 'schedule'\n")
    one = drawn(profile="fixed", hash_seed="1")
    assert len(one) >= 100
    assert one == drawn(tmp_path, profile="fixed", hash_seed="2")


def test_the_random_profile_draws_other_and_more_examples() -> None:
    one, other = drawn(profile="random"), drawn(profile="random")
    assert len(one) >= 500
    assert one != other
