"""Runs commands in processes in which some modules cannot be imported; called by test_extras.py.

Reads a list of [words of a command, modules that are missing] from standard input and writes a list
of [exit code, output]. Each command runs in a fork, so that the base is imported once.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from typing import Any

import numba  # noqa: F401  # imported once, before the forks
import scipy.stats  # noqa: F401

import ones.cli.app  # noqa: F401
from ones.cli import main


def run(words: list[str], missing: list[str]) -> tuple[int, str]:
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            sys.argv = ["ones", *words]
            modules: dict[str, Any] = sys.modules
            modules.update(dict.fromkeys(missing))  # None: import and find_spec find nothing
            code = 1
            try:
                main()
            except SystemExit as leaving:
                code = int(leaving.code or 0)
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            os._exit(code)
        _, status = os.waitpid(child, 0)
        output.seek(0)
        return os.waitstatus_to_exitcode(status), output.read().decode()


if __name__ == "__main__":
    print(json.dumps([run(words, missing) for words, missing in json.load(sys.stdin)]))
