"""Limits on requests of users and workers. Each is a setting of the service."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, fields
from math import ceil, isfinite

from ones.config import ServiceSettings
from ones.errors import InvalidSettingError, UserError

KIB = 1024


class LimitError(UserError):
    """A request exceeds a limit; the message names the setting and its value."""

    def __init__(
        self, problem: str, setting: str, value: float, *, status: int = 422, wait: float = 0.0
    ) -> None:
        """`wait`: seconds after which the request may succeed; 0: the request must change."""
        super().__init__(f"{problem}; the limit is {setting} = {value:g}")
        self.status = status
        self.headers = {"Retry-After": str(ceil(wait))} if wait else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The settings `max_...` of the service, checked."""

    max_reports_per_request: int
    max_reports_per_second: float
    max_report_burst: int
    max_command_kb: int
    max_environment_kb: int
    max_snapshot_mb: float
    max_unfinished_jobs: int
    max_output_mb: int
    max_priority: float
    max_connections_per_address: int
    max_requests_per_user: int
    max_header_seconds: float
    max_body_seconds: float

    @classmethod
    def of(cls, settings: ServiceSettings) -> Limits:
        return cls(**{f.name: getattr(settings, f.name) for f in fields(cls)})

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            if not (isfinite(value) and value > 0):
                raise InvalidSettingError(f"{setting.name}: {value} is not above 0")
        if self.max_report_burst < self.max_reports_per_request:
            raise InvalidSettingError(
                f"max_report_burst: {self.max_report_burst} is below max_reports_per_request"
                f" {self.max_reports_per_request}: a full request would never be accepted"
            )

    def check_command(self, command: list[str]) -> None:
        size = sum(len(argument.encode()) + 1 for argument in command)
        if size > self.max_command_kb * KIB:
            problem = f"command: {size} bytes is too long"
            raise LimitError(problem, "max_command_kb", self.max_command_kb)

    def check_environment(self, environment: Mapping[str, str]) -> None:
        size = sum(len(n.encode()) + len(v.encode()) + 2 for n, v in environment.items())
        if size > self.max_environment_kb * KIB:
            problem = f"env: {size} bytes is too large"
            raise LimitError(problem, "max_environment_kb", self.max_environment_kb)

    def check_unfinished(self, user: str, jobs: int) -> None:
        """`jobs`: number of unfinished jobs of this user, without the new one."""
        if jobs >= self.max_unfinished_jobs:
            problem = f"{user} has {jobs} unfinished jobs"
            raise LimitError(problem, "max_unfinished_jobs", self.max_unfinished_jobs, status=429)

    def check_priority(self, priority: float) -> None:
        """Check the priority of a job of a user without the role admin."""
        if abs(priority) > self.max_priority:
            problem = f"priority: {priority:g} is for admins only"
            raise LimitError(problem, "max_priority", self.max_priority)


class ReportRates:
    """A token bucket for each job: reports per second, with a burst."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._clock = limits, clock
        self._buckets: dict[str, tuple[float, float]] = {}  # reports left, as of this time

    def take(self, job: str, reports: int, workers: int) -> None:
        """Count reports of a job. Raises LimitError, and counts nothing, if they are too many."""
        limits, now = self._limits, self._clock()
        rate = limits.max_reports_per_second * max(1, workers)
        left, at = self._buckets.get(job, (float(limits.max_report_burst), now))
        left = min(float(limits.max_report_burst), left + (now - at) * rate)
        if left < reports:
            self._buckets[job] = left, now
            raise LimitError(
                f"job {job}: more than {rate:g} reports per second",
                "max_reports_per_second", limits.max_reports_per_second,
                status=429, wait=(reports - left) / rate,
            )  # fmt: skip
        self._buckets[job] = left - reports, now

    def forget_others(self, jobs: Container[str]) -> None:
        """Keep the buckets of these jobs only."""
        self._buckets = {job: bucket for job, bucket in self._buckets.items() if job in jobs}

    def __len__(self) -> int:
        return len(self._buckets)
