"""The outermost layer of the HTTP API: refuses requests before their body is read.

It refuses requests for other hosts, without a valid token, or beyond a user's limit. An unexpected
exception becomes status 500 with one line; the log has its traceback.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import socket
from collections import Counter
from collections.abc import Iterable, Mapping

from fastapi import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ones.control.accounts import User
from ones.control.api.access import user_of
from ones.control.api.errors import BUG, headers_of, status_of
from ones.control.limits import LimitError
from ones.control.service import Service
from ones.errors import OnesError

#: requests below these paths need a token or a session of a user
USER_PATHS = ("/api/", "/page/")
WILDCARDS = ("", "0.0.0.0", "::")
_LOG = logging.getLogger("ones.api")


class Gate:
    """ASGI middleware that checks host, user and number of requests.

    `hosts`: values of the header `Host` that are accepted, besides the address at which the request
    arrived. This refuses pages of other names that resolve to our address (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, service: Service, hosts: Iterable[str]) -> None:
        self._app, self._service = app, service
        self._hosts = frozenset(host.lower() for host in hosts)
        self._requests: Counter[str] = Counter()  # current requests, by user

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def tracked_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        user = None
        try:
            self._check_host(scope)
            if scope["path"].startswith(USER_PATHS):
                user = self._admit(scope)
            await self._app(scope, receive, tracked_send)
        except ClientDisconnect:
            pass
        except HTTPException as problem:
            await _answer(send, problem.status_code, str(problem.detail), problem.headers or {})
        except OnesError as problem:
            await _answer(send, status_of(problem), str(problem), headers_of(problem))
        except Exception:
            _LOG.exception("%s %s: unexpected exception", scope["method"], scope["path"])
            if not started:
                await _answer(send, 500, BUG, {})
        finally:
            if user is not None:
                self._leave(user)

    def _check_host(self, scope: Scope) -> None:
        given = next((v for n, v in scope["headers"] if n == b"host"), b"").decode("latin-1")
        host = host_in(given)
        server = scope.get("server")
        if host in self._hosts or (server and _is_same_address(host, server[0])):
            return
        problem = (
            f"Host: {given[:200]!r} is not a name of this service; add it to the setting"
            " allowed_hosts"
        )
        raise HTTPException(421, problem)

    def _admit(self, scope: Scope) -> User:
        """The user of the request. Raises if the credentials are invalid or a limit is reached."""
        user = user_of(Request(scope), self._service)
        most = self._service.limits.max_requests_per_user
        if self._requests[user.name] >= most:
            problem = f"{user.name} already has {most} requests in progress"
            raise LimitError(problem, "max_requests_per_user", most, status=429, wait=1.0)
        self._requests[user.name] += 1
        return user

    def _leave(self, user: User) -> None:
        self._requests[user.name] -= 1
        if not self._requests[user.name]:
            del self._requests[user.name]


def known_hosts(host: str, advertise: str, more: str) -> set[str]:
    """Host names of a service that listens on `host`; `more`: the setting `allowed_hosts`."""
    machine = socket.gethostname()
    names = {"localhost", "127.0.0.1", "::1", machine, socket.getfqdn(), advertise}
    names |= {name.strip() for name in more.split(",")}
    if host not in WILDCARDS:
        names.add(host)
    return {name for name in names if name}


def host_in(header: str) -> str:
    """The host of a `Host` header, without its port.

    >>> host_in("Head.example:8642"), host_in("[::1]:80"), host_in("127.0.0.1")
    ('head.example', '::1', '127.0.0.1')
    """
    header = header.strip().lower()
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].rstrip(".")


def _is_same_address(host: str, arrived_at: str) -> bool:
    try:
        return ipaddress.ip_address(host) == ipaddress.ip_address(arrived_at)
    except ValueError:
        return False


async def _answer(send: Send, status: int, text: str, headers: Mapping[str, str]) -> None:
    body = json.dumps({"error": text}).encode()
    plain = {"content-type": "application/json", "content-length": str(len(body)), **headers}
    raw = [(name.lower().encode(), value.encode()) for name, value in plain.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
