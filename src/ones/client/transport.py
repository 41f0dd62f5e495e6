"""HTTP requests to the service, and its errors as exceptions of one line."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from ones.errors import OnesError, UnknownNameError, UserError, WorldError

TIMEOUT = 60.0


def options_of(url: str, token: str, certificate: str = "") -> dict[str, Any]:
    """Arguments of httpx clients. `certificate`: file of a certificate to trust besides those of
    the machine."""
    return {
        "base_url": url,
        "headers": {"Authorization": f"Bearer {token}"} if token else {},
        "timeout": TIMEOUT,
        "verify": _trusting(certificate) if url.startswith("https:") else True,
    }


def _trusting(certificate: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if certificate:
        try:
            context.load_verify_locations(cafile=certificate)
        except OSError as problem:
            raise UserError(f"tls_certificate: {certificate}: {problem}") from problem
    return context


def unreachable(url: str, problem: Exception) -> WorldError:
    """The error for a request that got no answer."""
    if "CERTIFICATE_VERIFY_FAILED" in str(problem):
        return WorldError(
            f"{url}: the service's certificate is not trusted ({problem});"
            " set SSL_CERT_FILE to the file of its authority"
        )
    return WorldError(f"no service answers at {url} ({problem}); start it with: ones up")


def check(url: str, answer: Any) -> None:  # noqa: ANN401  # a response of httpx
    """Raise the error that an answer reports, if it is one."""
    if answer.is_success:
        return
    try:
        text = str(answer.json()["error"])
    except (ValueError, KeyError, TypeError) as problem:
        raise not_ones(url, answer) from problem
    if answer.status_code == 401:
        hint = "; check ONES_API_TOKEN" if url.startswith("http") else ""
        raise UserError(f"{url}: {text}{hint}")
    if answer.status_code == 404:
        raise _with_text(UnknownNameError, text)
    if answer.status_code < 500:
        raise UserError(text)
    raise WorldError(f"{url}: {text}")


def plain(url: str, answer: Any) -> Any:  # noqa: ANN401
    """The JSON value of an answer without an error."""
    try:
        return answer.json()
    except ValueError as problem:
        raise not_ones(url, answer) from problem


def not_ones(url: str, answer: Any) -> WorldError:  # noqa: ANN401
    status = f"{answer.status_code} {answer.reason_phrase}".strip()
    return WorldError(f"{url}: another program answers at this address ({status})")


def of_job(job: str, *more: str) -> str:
    """The URL path of a job. Raises for a text that would lead to another path."""
    if not job or "/" in job or job in (".", ".."):
        raise UserError(f"unknown job {job!r}; list all jobs with: ones ps --all")
    return "/".join(("/api/jobs", *(quote(part, safe="") for part in (job, *more))))


def given(query: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in query.items() if value is not None}


def _with_text(kind: type[OnesError], text: str) -> OnesError:
    """An error with exactly the text of the service."""
    problem = kind.__new__(kind, text)
    problem.args = (text,)
    return problem
