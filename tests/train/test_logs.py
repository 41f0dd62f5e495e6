"""Warnings of the training library in a user's script."""

from __future__ import annotations

import subprocess
import sys


def test_a_script_with_logging_of_its_own_gets_warnings_there() -> None:
    script = """
import logging
from ones.train.logs import logger
logger("ones.train.x").warning("first")
logging.basicConfig(format="%(name)s: %(message)s")
logger("ones.train.x").warning("second")
logger("ones.train.x").info("third")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stderr == "ones: first\nones.train.x: second\n"
