"""The web page without a browser: access, headers, and the event stream."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.control.world import ENV, World, anyone
from tests.processes import PATIENCE, wait_for

STATIC = ("page.css", "overview.js", "uplot/uPlot.iife.min.js", "uplot/LICENSE")


@pytest.fixture
def browser(world: World) -> Iterator[httpx.Client]:
    """With the cookie that a link gave it."""
    with httpx.Client(base_url=world.http.base_url, timeout=PATIENCE) as client:
        assert client.get(world.post("/api/link")["url"]).status_code == 303
        yield client


def read(client: httpx.Client, until: str, times: int = 1, **query: Any) -> list[tuple[str, Any]]:
    """News of a page's stream, up to the last that is waited for."""
    found: list[tuple[str, Any]] = []
    with client.stream("GET", "/page/stream", params=query) as stream:
        assert stream.status_code == 200
        name = ""
        for line in stream.iter_lines():
            if line.startswith("event:"):
                name = line.removeprefix("event:").strip()
            elif line.startswith("data:"):
                found.append((name, json.loads(line.removeprefix("data:"))))
                times -= name == until
                if not times:
                    return found
    raise AssertionError("the stream ended")


def test_a_user_that_is_not_logged_in_sees_how_to(world: World) -> None:
    for path in ("/", "/timeline", "/decisions", "/jobs/nobody-1"):
        answer = anyone("GET", f"{world.http.base_url}{path}")
        assert answer.status_code == 401
        assert "ones link" in answer.text
    assert anyone("GET", f"{world.http.base_url}/page/stream").status_code == 401
    used = anyone("GET", f"{world.http.base_url}/login", params={"code": "<script>"})
    assert used.status_code == 401
    assert "used before, or is too old" in used.text
    assert "<script>" not in used.text


def test_a_missing_page_is_an_html_page_for_browsers(world: World, browser: httpx.Client) -> None:
    found = browser.get("/nothing-<b>", headers={"Accept": "text/html"})
    assert found.status_code == 404
    assert "There is no page /nothing-" in found.text
    assert "<b>" not in found.text
    assert browser.get("/api/nothing", headers={"Accept": "text/html"}).json() == {
        "error": "Not Found"
    }
    assert browser.get("/nothing").json() == {"error": "Not Found"}


def test_no_answer_lets_a_browser_run_what_is_not_ours(world: World, browser: httpx.Client) -> None:
    for path in ("/", "/timeline", "/decisions", "/jobs/x", "/api/jobs", "/static/overview.js"):
        headers = browser.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
    for path in ("/", "/timeline", "/decisions"):
        text = browser.get(path).text
        assert not re.search(r"<script(?![^>]*\bsrc=\"/static/)", text), "no inline script"
        assert not re.search(r"\son\w+=|\sstyle=", text), "no inline handler, no inline style"
        assert "http:" not in text, "nothing from elsewhere"
        assert browser.get(path).headers["cache-control"] == "no-store"
    for name in STATIC:
        assert browser.get(f"/static/{name}").status_code == 200
    assert browser.get("/static/../views.py").status_code == 404


def test_what_a_user_wrote_is_escaped(world: World, browser: httpx.Client) -> None:
    evil = "<img src=x onerror=alert(1)>"
    job = world.run(["true", evil], gpus=1, name=evil, tags=[evil])
    world.wait_end(job)
    text = browser.get(f"/jobs/{job}").text
    assert evil not in text
    assert "&lt;img src=x onerror=alert(1)&gt;" in text, "command and tags of one that has ended"
    missing = browser.get("/jobs/%3Cimg%3E")
    assert missing.status_code == 404
    assert "<img>" not in missing.text


def test_a_cookie_alone_changes_nothing_from_another_page(
    world: World, browser: httpx.Client
) -> None:
    job = world.submit(1000, 1.0)
    own = f"{world.http.base_url}".rstrip("/")
    for headers in (
        {},
        {"Origin": "http://127.0.0.1:9"},
        {"Origin": "null"},
        {"Origin": own, "Sec-Fetch-Site": "same-site"},
    ):
        assert browser.post(f"/api/jobs/{job}/cancel", headers=headers).status_code == 403
    assert world.job(job)["ended_at"] is None
    assert browser.post(f"/api/jobs/{job}/cancel", headers={"Origin": own}).status_code == 200
    world.wait_end(job)


def test_logging_out_voids_the_cookie(world: World, browser: httpx.Client) -> None:
    copy = dict(browser.cookies)
    own = {"Sec-Fetch-Site": "same-origin"}
    assert browser.post("/logout", headers=own).status_code == 303
    assert anyone("GET", f"{world.http.base_url}/api/me", cookies=copy).status_code == 401


def test_a_page_is_told_all_it_shows_and_then_what_is_new(
    world: World, browser: httpx.Client
) -> None:
    job = world.submit(3, 0.2)
    world.wait_end(job)
    wait_for(lambda: world.story(job)[-1].endswith("has left."))
    news = read(browser, "decisions")
    assert [name for name, _ in news] == ["hello", "problems", "jobs", "cluster", "decisions"]
    told = dict(news)
    assert told["hello"]["admin"]
    assert told["jobs"]["all"]
    assert job in [card["id"] for card in told["jobs"]["cards"]]
    assert all("command" not in card for card in told["jobs"]["cards"])
    assert len(told["cluster"]["slots"]) == 4
    assert any(a["job"] == job for plan in told["decisions"] for a in plan["actions"])
    assert all(plan["actions"] or plan["notes"] for plan in told["decisions"])

    past = dict(read(browser, "output", job=job))
    assert [round(v, 3) for _, v in past["points"]["loss"]] == [1.0, 0.5, 0.333]
    assert [v for _, v in past["points"]["batch"]] == [10], "the script's own, once it has joined"
    assert [v for _, v in past["points"]["gpus"]][-1] == 0
    assert [line["text"] for line in past["story"]] == world.story(job)
    assert past["output"]["text"].endswith("done\n")
    assert past["output"]["over"]
    assert past["launches"][0]["ended_at"] > 0


def test_output_goes_on_where_a_page_left_off(world: World, browser: httpx.Client) -> None:
    more = world.gate()
    job = world.run(more.shell("echo B", first="echo Aä"), gpus=1)
    wait_for(lambda: world.launches(job) and "A" in world.output(job))
    first = read(browser, "output", job=job)[-1][1]
    assert first["begins"]
    assert (first["text"], first["next"]) == ("Aä\n", 4)
    query = {"launch": first["launch"], "offset": first["next"]}
    more.open()
    second = read(browser, "output", job=job, **query)[-1][1]
    assert (second["text"], second["begins"]) == ("B\n", False)
    world.wait_end(job)


def test_a_user_sees_nothing_of_others_jobs(world: World) -> None:
    token = world.post("/api/users", {"name": "dora"}, 201)["token"]
    job = world.run(["sleep", "100"], gpus=1, name="secret")
    wait_for(lambda: world.job(job)["state"] == "running")
    with httpx.Client(
        base_url=world.http.base_url, headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE
    ) as dora:
        news = read(dora, "cluster")
        assert dora.get("/page/stream", params={"job": job}).status_code == 404
        assert dora.get(f"/jobs/{job}").status_code == 404
        past = dora.get("/api/timeline").json()
    assert job not in json.dumps(news)
    assert sum(slot["owner"] is not None for slot in dict(news)["cluster"]["slots"]) == 1
    assert job not in json.dumps(past)
    assert [s["job"] for s in past["segments"] if s["end"] is None] == [None]
    world.post(f"/api/jobs/{job}/cancel")
    world.wait_end(job)


def test_the_timeline_shows_the_job_on_each_gpu(world: World) -> None:
    end = world.gate()
    job = world.submit(2, 0.3, f"end-when={end}")
    wait_for(lambda: world.job(job)["state"] == "running")
    card = world.job(job)
    mine = [s for s in world.get("/api/timeline")["segments"] if s["job"] == job]
    assert {s["gpu"]: s["batch"] for s in mine} == {w["gpu"]: w["batch"] for w in card["workers"]}
    assert all(s["end"] is None for s in mine)
    end.open()
    card = world.wait_end(job)
    wait_for(lambda: not world.get("/api/cluster")["running"])
    wait_for(lambda: all(s["owner"] is None for s in world.get("/api/cluster")["slots"]))
    # the log is written a moment after the board
    wait_for(lambda: all(s["end"] for s in world.get("/api/timeline")["segments"]))
    found = world.get("/api/timeline")
    mine = [s for s in found["segments"] if s["job"] == job]
    assert abs(mine[0]["begin"] - card["started_at"]) < 1e-6
    assert found["gpus"] == [f"local/{i}" for i in range(4)]
    later = world.get("/api/timeline", since=found["now"])
    assert later["segments"] == []


def test_a_loss_that_is_not_a_number_is_shown_as_none() -> None:
    from ones.control.page.feed import to_json

    assert to_json({"loss": float("nan"), "all": [1.5, float("inf")]}) == (
        '{"loss": null, "all": [1.5, null]}'
    )


def test_ones_link_prints_a_link_that_works(world: World) -> None:
    ones = str(Path(sys.executable).with_name("ones"))
    command = [ones, "link", "--state", str(world.dir.path)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, env=ENV)
    assert answer.returncode == 0, answer.stderr
    printed = answer.stdout
    assert anyone("GET", printed.strip()).status_code == 303
    assert anyone("GET", printed.strip()).status_code == 401


def test_the_interface_is_described_without_anything_from_elsewhere(world: World) -> None:
    answer = anyone("GET", f"{world.http.base_url}/docs")  # open to all
    assert answer.status_code == 200
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "POST /api/jobs" in answer.text
    assert 'id="NewJob"' in answer.text
    targets = re.findall(r'(?:src|href)="([^"]+)"', answer.text)
    assert targets
    assert all(target.startswith(("/", "#")) for target in targets), targets
    shown = set(re.findall(r'href="#([^"]+)"', answer.text))
    assert all(f'id="{name}"' in answer.text for name in shown)
