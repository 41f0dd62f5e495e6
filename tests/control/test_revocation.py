"""What a renewed token and a removed user end: at once, everywhere, and for good."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from ones.control.accounts import User
from ones.control.api.cluster import _changes as events
from ones.control.page.feed import Feed
from ones.control.page.stream import _news as page_news
from tests.asynchronous import run_apart
from tests.control.inside import Inside, bearer, inside


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Inside]:
    with inside(tmp_path) as found:
        yield found


def log_in(service: Inside, headers: dict[str, str]) -> dict[str, str]:
    link = service.http.post("/api/link", headers=headers).json()["url"]
    answer = service.bare.get(link.removeprefix("http://127.0.0.1"))
    service.bare.cookies.clear()
    return {"Cookie": answer.headers["set-cookie"].partition(";")[0]}


def test_a_renewed_token_ends_browsers_and_unused_links(service: Inside) -> None:
    ann = service.add_user("ann")
    browser = log_in(service, ann)
    link = service.http.post("/api/link", headers=ann).json()["url"]
    assert service.bare.get("/api/me", headers=browser).json()["name"] == "ann"
    renewed = bearer(service.http.post("/api/users/ann/token").json()["token"])
    assert service.bare.get("/api/me", headers=browser).status_code == 401
    assert service.bare.get(link.removeprefix("http://127.0.0.1")).status_code == 401
    assert service.bare.get("/api/me", headers=ann).status_code == 401
    assert service.bare.get("/api/me", headers=renewed).status_code == 200
    again = log_in(service, renewed)
    assert service.bare.get("/api/me", headers=again).status_code == 200


def page(service: Inside, user: User) -> AsyncIterator[dict[str, str]]:
    return page_news(service.service, user, Feed(service.service, user, None, None))


def job_events(service: Inside, user: User) -> AsyncIterator[dict[str, str]]:
    return events(service.service, user)


@pytest.mark.parametrize("stream", [page, job_events])
@pytest.mark.parametrize("end", ["renew", "remove"])
def test_open_streams_end(
    service: Inside, stream: Callable[..., AsyncIterator[dict[str, str]]], end: str
) -> None:
    service.add_user("ann")
    accounts = service.service.accounts
    ann = accounts.get("ann")

    async def follow() -> None:
        news = stream(service, ann)
        assert (await anext(news))["event"] == "hello"
        await asyncio.to_thread(accounts.set_limit, "ann", 3)  # changes nothing here
        assert accounts.is_current(ann)
        if end == "renew":
            await asyncio.to_thread(accounts.renew, "ann")
        else:
            await asyncio.to_thread(accounts.remove, "ann", "admin")
        async for _ in news:
            pass

    run_apart(asyncio.wait_for(follow(), 60))


def test_a_name_with_kept_jobs_is_not_given_to_another_user(service: Inside) -> None:
    ann = service.add_user("ann")
    job = service.submit(ann).json()["id"]
    service.http.post(f"/api/jobs/{job}/cancel")
    service.http.delete("/api/users/ann")
    refused = service.http.post("/api/users", json={"name": "ann"})
    assert refused.status_code == 422
    told = "name: 'ann' belongs to jobs of a removed user"
    assert refused.json() == {"error": f"{told}; choose another name, such as 'ann2'"}
    ann2 = service.add_user("ann2")
    assert service.http.get("/api/jobs?all=true", headers=ann2).json() == []
    service.add_user("bob")
    service.http.delete("/api/users/bob")
    service.add_user("bob")  # no jobs, nothing to inherit


def test_the_file_with_the_admin_s_token_follows_a_renewal(service: Inside) -> None:
    me = service.http.get("/api/me").json()["name"]
    directory = service.service.dir
    token = service.http.post(f"/api/users/{me}/token").json()["token"]
    assert directory.read_token() == token
    assert directory.token.stat().st_mode & 0o777 == 0o600
    service.http.headers.update(bearer(token))
    service.add_user("eve", role="admin")
    service.http.post("/api/users/eve/token")
    assert directory.read_token() == token, "another admin's is not kept there"
