"""The audit: actions are written once, without secrets, and cannot be filled or changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from ones.control.audit import GATHER_SECONDS, MOST_KINDS, Audit
from ones.control.schema import audit
from ones.control.store import Store
from tests.control.inside import Inside, inside


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Inside]:
    with inside(tmp_path, max_command_kb=1) as found:
        yield found


def told(rows: list[dict[str, object]]) -> list[tuple[object, ...]]:
    """The oldest first."""
    return [(row["who"], row["action"], row["subject"], row["detail"]) for row in reversed(rows)]


def test_what_admins_and_users_do_is_written_down(service: Inside) -> None:
    admin = service.http.get("/api/me").json()["name"]
    ann = service.add_user("ann")
    service.http.put("/api/users/ann/limit", json={"max_gpus": 2})
    job = service.submit(ann).json()["id"]
    service.http.patch(f"/api/jobs/{job}", json={"priority": 3}, headers=ann)
    service.http.post(f"/api/jobs/{job}/cancel")
    own = service.submit(ann).json()["id"]
    service.http.post(f"/api/jobs/{own}/cancel", headers=ann)
    assert service.submit(ann, command=["x" * 2000]).status_code == 422
    assert service.http.get("/api/users", headers=ann).status_code == 403
    link = service.http.post("/api/link", headers=ann).json()["url"]
    assert service.bare.get(link.removeprefix("http://127.0.0.1")).status_code == 303
    service.http.post("/api/cluster/drain", json={"place": "local/0"})
    service.http.post("/api/cluster/undrain", json={"place": "local/0"})
    renewed = service.http.post("/api/users/ann/token").json()["token"]
    service.http.delete("/api/users/ann")
    rows = service.audit()
    assert told(rows) == [
        (admin, "user added", "ann", "role user"),
        (admin, "limit set", "ann", "2 GPUs"),
        ("ann", "job changed", job, "priority 3; before: priority 0, 1 to 1 GPUs"),
        (admin, "job cancelled", job, "of ann"),
        ("ann", "submission refused", "",
         "command: 2001 bytes is too long; the limit is max_command_kb = 1"),
        ("ann", "refused", "", "GET /api/users"),
        ("ann", "login", "", ""),
        (admin, "drained", "local/0", ""),
        (admin, "undrained", "local/0", ""),
        (admin, "token renewed", "ann", ""),
        (admin, "user removed", "ann", ""),
    ]  # fmt: skip
    assert {row["address"] for row in rows} == {"testclient"}
    assert [row["number"] for row in rows] == list(range(11, 0, -1))
    secrets = [renewed, ann["Authorization"].split()[1], link.partition("=")[2]]
    assert not any(secret in str(rows) for secret in secrets)


def test_it_is_read_by_admins_page_by_page(service: Inside) -> None:
    ann = service.add_user("ann")
    for name in ("bob", "cat", "dan"):
        service.add_user(name)
    assert service.http.get("/api/audit", headers=ann).status_code == 403
    first = service.audit(limit=3)
    assert [row["subject"] for row in first] == ["", "dan", "cat"], "ann's attempt, too"
    rest = service.audit(limit=3, before=first[-1]["number"])
    assert [row["subject"] for row in rest] == ["bob", "ann"]
    assert [row["action"] for row in service.audit(user="ann")] == ["refused", "user added"]
    assert service.audit(since=first[0]["at"] + 1e6) == []


def test_wrong_tokens_and_links_are_counted(service: Inside) -> None:
    for token in ("wrong", "w\xf6rong", "x"):
        header = {"Authorization": f"Bearer {token}".encode("latin-1")}
        answer = service.bare.get("/api/me", headers=header)  # type: ignore[arg-type]
        assert answer.status_code == 401
    assert service.bare.get("/login?code=guess").status_code == 401
    assert service.bare.get("/api/me").status_code == 401, "no token at all is no attempt"
    assert told(service.audit()) == [
        ("", "login failed", "", "a wrong token"),
        ("", "login failed", "", "3 more of this kind"),
    ]


def test_refusals_cannot_fill_it(tmp_path: Path) -> None:
    now = 1000.0
    store = Store(f"sqlite:///{tmp_path}/ones.db")
    try:
        kept = Audit(store, lambda: now)
        for attempt in range(5000):
            kept.refused("", "login failed", "a wrong token", f"10.0.0.{attempt % 1000}")
        rows = kept.rows(10_000)
        assert len(rows) <= 2 * (MOST_KINDS + 1)
        counted = sum(int(r.detail.split()[0]) for r in rows if r.detail[0].isdigit())
        assert counted + sum(not r.detail[0].isdigit() for r in rows) == 5000
        now += GATHER_SECONDS
        kept.refused("ann", "refused", "GET /api/users", "10.0.0.1")
        assert kept.rows(1)[0].who == "ann", "a minute later there is room for others"
        assert Audit(store, lambda: now).rows(1)[0].number == kept.rows(1)[0].number
    finally:
        store.close()


def test_what_was_counted_is_written_at_the_end(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/ones.db")
    try:
        kept = Audit(store, lambda: 1.0)
        for _ in range(3):
            kept.refused("ann", "refused", "GET /api/users", "10.0.0.1")
        kept.settle()
        store.flush()
        details = [row.detail for row in store.rows(sa.select(audit).order_by(audit.c.number))]
        assert details == ["GET /api/users", "2 more of this kind"]
    finally:
        store.close()


def test_a_restart_goes_on_counting(tmp_path: Path) -> None:
    for name in ("ann", "bob"):
        with inside(tmp_path) as service:
            service.add_user(name)
            numbers = [row["number"] for row in service.audit()]
    assert numbers == [2, 1]
