"""The launcher of these tests: workers are forked from one zygote that all tests share."""

from __future__ import annotations

import contextlib

import psutil

from ones.lab import fork_launcher
from ones.lab.fork_launcher import start_zygote


def _is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class ForkLauncher(fork_launcher.ForkLauncher):
    def family(self) -> list[int]:
        """All that descends from the zygote: workers, stores, and their children."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            if self.zygote in (process.info["cmdline"] or ()):
                with contextlib.suppress(psutil.NoSuchProcess):
                    found += [child.pid for child in process.children(recursive=True)]
        return [pid for pid in found if _is_alive(pid)]


__all__ = ["ForkLauncher", "start_zygote"]
