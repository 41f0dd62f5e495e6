"""`ones doctor`: checks of the set-up, each with a status and advice. No check raises."""

from __future__ import annotations

from collections.abc import Callable

from ones.apps.doctor import machine, service
from ones.apps.doctor.findings import PROBLEM, Finding, Findings
from ones.config import ServiceSettings

CHECKS: tuple[Callable[[ServiceSettings], Findings], ...] = (
    machine.versions,
    machine.extras,
    machine.torch_and_gpus,
    machine.machine,
    service.state,
    service.disk,
    service.database,
    service.service,
    service.workers,
)


def examine(settings: ServiceSettings) -> list[Finding]:
    found = []
    for check in CHECKS:
        try:
            found += list(check(settings))
        except Exception as problem:
            name = check.__name__.replace("_", " ")
            found.append(Finding(name, PROBLEM, f"{type(problem).__name__}: {problem}"))
    return found


__all__ = ["CHECKS", "Finding", "examine"]
