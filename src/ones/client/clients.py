"""`Client` and `AsyncClient`: the same methods, with and without asyncio."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from ones.client import calls
from ones.client.calls import Call
from ones.client.connection import find
from ones.client.snapshot import Step, advance, finished, upload
from ones.client.transport import check, of_job, options_of, plain, unreachable
from ones.control.api.past_models import CurvesShown, HistoryShown, ReplayShown, UsageShown
from ones.control.api.response_models import (
    Changed,
    ClusterShown,
    Curves,
    JobDetails,
    JobShown,
    LaunchShown,
    StoryLine,
    Submitted,
)
from ones.errors import WorldError

T = TypeVar("T")
POLL_SECONDS = 0.5
Directory = str | os.PathLike[str]


class Client:
    """The service for one user. Errors are `ones.errors.UserError` and `WorldError`."""

    def __init__(self, url: str, token: str, certificate: str = "", socket: str = "") -> None:
        """`certificate`: file of a certificate to trust besides those of the machine.

        `socket`: the service's Unix socket, where the kernel says which user calls.
        """
        self.url = socket or url
        transport = httpx.HTTPTransport(uds=socket) if socket else None
        self._http = httpx.Client(**options_of(url, token, certificate), transport=transport)

    @classmethod
    def connect(cls, state: Path | None = None) -> Self:
        """The client of ONES_URL and ONES_API_TOKEN, or of the service of a state directory."""
        return cls(*find(state))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def run(self, call: Call[T]) -> T:
        try:
            answer = self._http.request(call.method, call.path, params=call.query, json=call.body)
        except httpx.TransportError as problem:
            raise unreachable(self.url, problem) from problem
        check(self.url, answer)
        return call.read(plain(self.url, answer))

    def submit(
        self,
        command: Sequence[str],
        *,
        cwd: Directory | None = None,
        env: Mapping[str, str] | None = None,
        snapshot: bool = False,
        **options: Any,
    ) -> Submitted:
        """Submit a job. `options`: fields of `NewJob`, as `name` or `max_gpus`. Without `cwd` and
        `env`: the present directory and environment. `snapshot`: the job runs the files as they
        are now, not as they are when it starts."""
        if snapshot:
            steps = upload(command, cwd or os.getcwd(), os.environ if env is None else env)
            return self.run(calls.submit_snapshot(finished(steps, self._send), options))
        return self.run(calls.submit(command, cwd, env, options))

    def _send(self, step: Step) -> Any:  # noqa: ANN401
        try:
            answer = self._http.request(
                step.method, step.path, params=step.query, content=step.content
            )
        except httpx.TransportError as problem:
            raise unreachable(self.url, problem) from problem
        check(self.url, answer)
        return plain(self.url, answer)

    def jobs(self, *, all: bool = False, limit: int = 1000, **filters: Any) -> list[JobShown]:
        """Jobs, the newest first. `filters`: `state`, `owner`, `tag`, `name`, `array`."""
        return self.run(calls.jobs(all, limit, filters))

    def job(self, id: str) -> JobDetails:
        return self.run(calls.job(id))

    def change(self, id: str, **changes: Any) -> Changed:
        """Change a job that has not ended. `changes`: fields of `JobChange`, as `priority`."""
        return self.run(calls.change(id, changes))

    def cancel(self, id: str) -> Changed:
        return self.run(calls.act(id, "cancel"))

    def hold(self, id: str) -> Changed:
        return self.run(calls.act(id, "hold"))

    def release(self, id: str) -> Changed:
        return self.run(calls.act(id, "release"))

    def rerun(self, id: str) -> Submitted:
        return self.run(calls.rerun(id))

    def story(self, id: str) -> list[StoryLine]:
        """The history of a job, with reasons."""
        return self.run(calls.story(id))

    def curves(self, id: str) -> Curves:
        return self.run(calls.curves(id))

    def launches(self, id: str) -> list[LaunchShown]:
        """The processes of a job."""
        return self.run(calls.launches(id))

    def output(self, id: str, launch: str, *, offset: int = 0) -> bytes:
        """Output of a process from an offset on, at most 1 MB; below 0: from the end."""
        path = of_job(id, "launches", launch, "log")
        try:
            answer = self._http.get(path, params={"offset": offset})
        except httpx.TransportError as problem:
            raise unreachable(self.url, problem) from problem
        check(self.url, answer)
        return answer.content

    def cluster(self) -> ClusterShown:
        return self.run(calls.cluster())

    def drain(self, place: str, reason: str = "") -> ClusterShown:
        return self.run(calls.drain(place, reason))

    def undrain(self, place: str) -> ClusterShown:
        return self.run(calls.undrain(place))

    def usage(
        self,
        by: Sequence[str] = ("user",),
        *,
        since: float | None = None,
        until: float | None = None,
        owner: str | None = None,
    ) -> list[UsageShown]:
        """GPU hours; `by`: `user`, `tag`, `day`. Times are seconds since 1970."""
        return self.run(calls.usage(by, since, until, owner))

    def history(self, *, since: float | None = None, points: int = 500) -> HistoryShown:
        """GPUs used, waiting jobs and decisions over time; without `since` of a day."""
        return self.run(calls.history(since, points))

    def curves_of_jobs(self, ids: Sequence[str], *, against: str = "epochs") -> CurvesShown:
        """Curves of several jobs against `epochs`, `samples` or `time`."""
        return self.run(calls.curves_of_jobs(ids, against))

    def start_whatif(self, policy: str, *, hours: float = 6.0) -> ReplayShown:
        """Replay the last hours under another policy, in the background of the service."""
        return self.run(calls.start_whatif(policy, hours))

    def whatif(self) -> ReplayShown:
        """The last replay: its progress, or its result."""
        return self.run(calls.whatif())

    def cancel_whatif(self) -> ReplayShown:
        return self.run(calls.cancel_whatif())

    def wait(self, ids: Iterable[str], *, timeout: float | None = None) -> list[JobDetails]:
        """The jobs, once all have ended. Raises WorldError after `timeout` seconds."""
        deadline = _deadline(timeout)
        found = []
        for id in ids:
            while (job := self.job(id)).ended_at is None:
                _check_time(id, deadline)
                time.sleep(POLL_SECONDS)
            found.append(job)
        return found


class AsyncClient:
    """As `Client`, for asyncio."""

    def __init__(self, url: str, token: str, certificate: str = "", socket: str = "") -> None:
        self.url = socket or url
        transport = httpx.AsyncHTTPTransport(uds=socket) if socket else None
        self._http = httpx.AsyncClient(**options_of(url, token, certificate), transport=transport)

    @classmethod
    def connect(cls, state: Path | None = None) -> Self:
        return cls(*find(state))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def run(self, call: Call[T]) -> T:
        try:
            answer = await self._http.request(
                call.method, call.path, params=call.query, json=call.body
            )
        except httpx.TransportError as problem:
            raise unreachable(self.url, problem) from problem
        check(self.url, answer)
        return call.read(plain(self.url, answer))

    async def submit(
        self,
        command: Sequence[str],
        *,
        cwd: Directory | None = None,
        env: Mapping[str, str] | None = None,
        snapshot: bool = False,
        **options: Any,
    ) -> Submitted:
        if snapshot:
            steps = upload(command, cwd or os.getcwd(), os.environ if env is None else env)
            step, uploaded = await asyncio.to_thread(advance, steps, None)
            while step is not None:
                answer = await self._send(step)
                step, uploaded = await asyncio.to_thread(advance, steps, answer)
            assert uploaded is not None
            return await self.run(calls.submit_snapshot(uploaded, options))
        return await self.run(calls.submit(command, cwd, env, options))

    async def _send(self, step: Step) -> Any:  # noqa: ANN401
        try:
            answer = await self._http.request(
                step.method, step.path, params=step.query, content=step.content
            )
        except httpx.TransportError as problem:
            raise unreachable(self.url, problem) from problem
        check(self.url, answer)
        return plain(self.url, answer)

    async def jobs(self, *, all: bool = False, limit: int = 1000, **filters: Any) -> list[JobShown]:
        return await self.run(calls.jobs(all, limit, filters))

    async def job(self, id: str) -> JobDetails:
        return await self.run(calls.job(id))

    async def change(self, id: str, **changes: Any) -> Changed:
        return await self.run(calls.change(id, changes))

    async def cancel(self, id: str) -> Changed:
        return await self.run(calls.act(id, "cancel"))

    async def hold(self, id: str) -> Changed:
        return await self.run(calls.act(id, "hold"))

    async def release(self, id: str) -> Changed:
        return await self.run(calls.act(id, "release"))

    async def rerun(self, id: str) -> Submitted:
        return await self.run(calls.rerun(id))

    async def story(self, id: str) -> list[StoryLine]:
        return await self.run(calls.story(id))

    async def curves(self, id: str) -> Curves:
        return await self.run(calls.curves(id))

    async def launches(self, id: str) -> list[LaunchShown]:
        return await self.run(calls.launches(id))

    async def output(self, id: str, launch: str, *, offset: int = 0) -> bytes:
        path = of_job(id, "launches", launch, "log")
        try:
            answer = await self._http.get(path, params={"offset": offset})
        except httpx.TransportError as problem:
            raise unreachable(self.url, problem) from problem
        check(self.url, answer)
        return answer.content

    async def cluster(self) -> ClusterShown:
        return await self.run(calls.cluster())

    async def drain(self, place: str, reason: str = "") -> ClusterShown:
        return await self.run(calls.drain(place, reason))

    async def undrain(self, place: str) -> ClusterShown:
        return await self.run(calls.undrain(place))

    async def usage(
        self,
        by: Sequence[str] = ("user",),
        *,
        since: float | None = None,
        until: float | None = None,
        owner: str | None = None,
    ) -> list[UsageShown]:
        return await self.run(calls.usage(by, since, until, owner))

    async def history(self, *, since: float | None = None, points: int = 500) -> HistoryShown:
        return await self.run(calls.history(since, points))

    async def curves_of_jobs(self, ids: Sequence[str], *, against: str = "epochs") -> CurvesShown:
        return await self.run(calls.curves_of_jobs(ids, against))

    async def start_whatif(self, policy: str, *, hours: float = 6.0) -> ReplayShown:
        return await self.run(calls.start_whatif(policy, hours))

    async def whatif(self) -> ReplayShown:
        return await self.run(calls.whatif())

    async def cancel_whatif(self) -> ReplayShown:
        return await self.run(calls.cancel_whatif())

    async def wait(self, ids: Iterable[str], *, timeout: float | None = None) -> list[JobDetails]:
        deadline = _deadline(timeout)
        found = []
        for id in ids:
            while (job := await self.job(id)).ended_at is None:
                _check_time(id, deadline)
                await asyncio.sleep(POLL_SECONDS)
            found.append(job)
        return found


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout


def _check_time(job: str, deadline: float | None) -> None:
    if deadline is not None and time.monotonic() >= deadline:
        raise WorldError(f"not ended in time: {job}")
