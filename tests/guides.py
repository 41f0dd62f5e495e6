"""A reader of a guide: types its commands one after the other, as they are printed there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks_of(guide: str) -> list[list[str]]:
    """The commands of each block, as `docs/guides/NAME` has them."""
    text = (ROOT / "docs" / "guides" / guide).read_text(encoding="utf-8")
    return [re.sub(r"\\\n\s*", " ", body).strip().splitlines() for body in FENCE.findall(text)]


class Reader:
    """`names`: what stands in the guide for something that every reader has differently."""

    def __init__(self, home: Path, names: Mapping[str, str], **env: str) -> None:
        self.home, self._names = home, names
        self._exports: list[str] = []
        (home / "bin").mkdir(parents=True, exist_ok=True)
        (home / "tools").symlink_to(ROOT / "tools")
        path = f"{home / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("ONES_", "XDG_"))}
        self._env = {
            **kept, "PATH": path, "HOME": str(home), "OMP_NUM_THREADS": "1",
            "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "ONES_SERVICE_PORT": "0", "ONES_SERVICE_POLICY": "equi", **env,
        }  # fmt: skip

    def types(self, command: str, seconds: float = 300.0) -> str:
        """All that is printed. It must do what the guide says, so it must not fail."""
        for name, here in self._names.items():
            command = command.replace(name, here)
        words = "; ".join(["set -eu", *self._exports, command])
        done = subprocess.run(
            ["bash", "-c", words], cwd=self.home, env=self._env, capture_output=True, text=True,
            timeout=seconds, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        if command.startswith("export "):
            self._exports.append(command)
        return done.stdout + done.stderr

    def forgets(self) -> None:
        """Another shell, on another day: what was exported is not there."""
        self._exports.clear()
