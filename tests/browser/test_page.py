"""The web page as people see it: a real service, real processes, a real browser."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import OpenPage
from tests.control.world import World
from tests.processes import wait_for

PHONE = {"width": 360, "height": 740}


def row(page: Page, table: str, job: str) -> Locator:
    return page.locator(f"#{table} tr[data-job='{job}']")


def background(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def test_a_job_appears_grows_makes_room_and_ends(
    make_world: Callable[..., World], open_page: OpenPage
) -> None:
    world = make_world(policy="equi")
    page = open_page(world)
    expect(page.locator(".slot.free")).to_have_count(4)
    expect(page.get_by_text("Nothing runs.")).to_be_visible()

    end = world.gate()
    first = world.submit(100_000, 0.5, name="first")
    expect(row(page, "running", first)).to_be_visible()
    expect(page.locator(f".slot.busy:has-text('{first}')")).to_have_count(4)
    expect(row(page, "running", first).locator("td").nth(1)).to_have_text("4")

    second = world.submit(6, 0.5, f"end-when={end}", name="second")
    expect(page.locator(f".slot.busy:has-text('{second}')")).to_have_count(2)
    expect(page.locator(f".slot.busy:has-text('{first}')")).to_have_count(2)
    expect(page.locator("#decisions")).to_contain_text(f"{second} ")
    expect(page.locator("#map-summary")).to_contain_text("4 of 4 in use")
    end.open()

    expect(row(page, "ended", second)).to_contain_text("finished")
    expect(row(page, "ended", second)).to_contain_text("98.4 %")
    expect(page.locator(f".slot.busy:has-text('{first}')")).to_have_count(4)
    world.post(f"/api/jobs/{first}/cancel")
    expect(row(page, "ended", first)).to_contain_text("cancelled")
    expect(page.locator(".slot.free")).to_have_count(4)


def test_a_job_waits_in_the_queue_and_is_cancelled_with_the_button(
    world: World, open_page: OpenPage
) -> None:
    hog = world.run(["sleep", "1000"], gpus=4, name="hog")
    waiting = world.run(["sleep", "1000"], gpus=2, name="waiting", priority=3)
    page = open_page(world)
    expect(row(page, "running", hog)).to_contain_text("fixed size")
    expect(row(page, "queue", waiting).locator("td").first).to_have_text("3")
    expect(row(page, "queue", waiting).locator(".why")).not_to_be_empty()

    row(page, "queue", waiting).get_by_role("button").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"Cancel {waiting}?")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert world.job(waiting)["ended_at"] is None, "asking is not doing"

    row(page, "queue", waiting).get_by_role("button", name=f"Cancel {waiting}").click()
    dialog.get_by_role("button", name="Cancel the job").click()
    expect(dialog).to_be_hidden()
    expect(row(page, "ended", waiting)).to_contain_text("cancelled")

    page.goto(f"/jobs/{hog}")
    page.get_by_role("button", name="Cancel…").click()
    page.get_by_role("button", name="Cancel the job").click()
    expect(page.locator("#state")).to_contain_text("cancelled")
    expect(page.get_by_role("button", name="Cancel…")).to_be_hidden()


def test_jobs_are_filtered_ordered_and_changed_together(world: World, open_page: OpenPage) -> None:
    hog = world.run(["sleep", "1000"], gpus=4, name="hog")
    some = [world.run(["sleep", "1000"], gpus=1, name="some", tags=["nlp"]) for _ in range(2)]
    page = open_page(world)
    expect(page.locator("#queue tbody tr")).to_have_count(2)
    expect(page.get_by_role("button", name="Hold…")).to_be_hidden()
    page.get_by_label("Filter").fill("tag:nlp")
    expect(row(page, "running", hog)).to_have_count(0)
    expect(page.locator("#queue tbody tr")).to_have_count(2)
    page.get_by_label("Order").select_option("newest")
    expect(page.locator("#queue tbody tr").first).to_have_attribute("data-job", some[1])

    page.get_by_role("button", name="Priority…").click()
    page.get_by_label("Priority", exact=True).fill("7")
    page.get_by_role("button", name="Do it").click()
    for job in some:
        expect(row(page, "queue", job).locator("td").first).to_have_text("7")
    page.get_by_role("button", name="Hold…").click()
    expect(page.get_by_role("dialog")).to_contain_text("Hold 2 jobs?")
    page.get_by_role("button", name="Change nothing").click()
    assert {world.job(job)["state"] for job in some} == {"waiting"}, "asking is not doing"
    page.get_by_role("button", name="Hold…").click()
    page.get_by_role("button", name="Do it").click()
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.get_by_label("Filter").fill("state:held")
    expect(page.locator("#queue tbody tr")).to_have_count(2)
    page.reload()
    expect(page.get_by_label("Filter")).to_have_value("state:held")
    expect(page.locator("#queue tbody tr")).to_have_count(2)
    page.get_by_role("button", name="Cancel all shown…").click()
    page.get_by_role("button", name="Do it").click()
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.get_by_label("Filter").fill("hog")
    expect(row(page, "running", hog)).to_be_visible()
    assert {world.job(job)["state"] for job in some} == {"cancelled"}
    page.get_by_role("button", name="Hold…").click()
    page.get_by_role("button", name="Do it").click()
    expect(page.get_by_role("dialog")).to_contain_text("1 of 1 were refused: job hog")
    page.get_by_role("button", name="Change nothing").click()
    world.post(f"/api/jobs/{hog}/cancel")


def test_the_tasks_of_an_array_are_one_row_that_opens(world: World, open_page: OpenPage) -> None:
    hog = world.run(["sleep", "1000"], gpus=4, name="hog")
    array = world.run(["sleep", "1000"], gpus=1, name="many", array="0-2")
    page = open_page(world)
    folded = page.locator(f"#queue tr[data-array='{array}']")
    expect(folded).to_contain_text("3 tasks")
    expect(row(page, "queue", f"{array}_1")).to_have_count(0)
    folded.get_by_role("button", name=array).click()
    expect(folded.get_by_role("button", name=array)).to_have_attribute("aria-expanded", "true")
    expect(page.locator("#queue tbody tr")).to_have_count(4)
    expect(row(page, "queue", f"{array}_1").get_by_role("link")).to_be_visible()
    row(page, "queue", f"{array}_1").get_by_role("button").click()
    page.get_by_role("button", name="Cancel the job").click()
    expect(folded).to_contain_text("2 tasks")
    expect(page.locator("#queue tbody tr")).to_have_count(3)
    folded.get_by_role("button", name=array).click()
    expect(page.locator("#queue tbody tr")).to_have_count(1)
    page.get_by_label("Filter").fill(f"array:{array}")
    page.get_by_role("button", name="Cancel all shown…").click()
    expect(page.get_by_role("dialog")).to_contain_text("Cancel 2 jobs?")
    page.get_by_role("button", name="Do it").click()
    expect(page.locator(f"#ended tr[data-array='{array}']")).to_contain_text("3 tasks")
    world.post(f"/api/jobs/{hog}/cancel")


def test_a_job_is_held_and_released_with_the_button(world: World, open_page: OpenPage) -> None:
    hog = world.run(["sleep", "1000"], gpus=4, name="hog")
    job = world.run(["sleep", "1000"], gpus=1, name="held")
    page = open_page(world, f"/jobs/{job}")
    page.get_by_role("button", name="Hold").click()
    expect(page.locator("#state")).to_contain_text("held")
    expect(page.locator("#note")).to_contain_text("On hold, by")
    page.get_by_role("button", name="Release").click()
    expect(page.locator("#state")).to_contain_text("waiting")
    expect(page.locator("#story")).to_contain_text("Released by")
    page.goto(f"/jobs/{hog}")
    expect(page.locator("#state")).to_contain_text("running")
    expect(page.get_by_role("button", name="Hold")).to_be_hidden()
    for each in (hog, job):
        world.post(f"/api/jobs/{each}/cancel")


def test_a_job_s_page_has_curves_its_story_and_its_output(
    world: World, open_page: OpenPage
) -> None:
    run = "https://runs.example/1"
    job = world.submit(12, 0.4, f"link={run}", name="curvy")
    page = open_page(world, f"/jobs/{job}")
    for curve in ("loss", "accuracy", "gpus", "batch", "throughput"):
        figure = page.locator(f"figure[data-curve={curve}]")
        expect(figure.locator("canvas")).to_be_visible()
    expect(page.locator("#output")).to_contain_text("epoch 2")
    link = page.get_by_role("link", name=f"Run in the tracker: {run}")
    expect(link).to_have_attribute("href", run)
    expect(page.locator("#state")).to_have_text("finished")
    expect(page.locator("#output")).to_contain_text("epoch 12\ndone")
    expect(page.locator("figure[data-curve=loss] figcaption")).to_contain_text("0.08333")
    drawn = page.evaluate(
        """() => {
          const canvas = document.querySelector("figure[data-curve=loss] canvas");
          const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          return pixels.data.filter((v, i) => i % 4 === 3 && v > 200).length;
        }"""
    )
    assert drawn > 100, "a line is drawn"
    story = page.locator("#story")
    expect(story).to_contain_text("Started on 1 GPU (local/")
    expect(story).to_contain_text("Ended: finished")
    expect(story).not_to_contain_text("Epoch 3 done")
    page.get_by_label("every epoch and worker").check()
    expect(story).to_contain_text("Epoch 3 done: loss 0.3333")
    expect(page.locator(".asked")).to_contain_text("paced.py 12 0.4")


def test_a_job_s_page_shows_what_its_workers_use(world: World, open_page: OpenPage) -> None:
    job = world.submit(100_000, 0.01, name="busy")
    page = open_page(world, f"/jobs/{job}")
    for name in ("memory_mb", "utilisation"):  # the first sample knows no CPU time
        chart = page.locator(f"[data-used='{name}']")
        expect(chart.locator("canvas")).to_be_visible()
        expect(chart.locator(".legend li").first).to_contain_text("local/0")
        expect(chart.get_by_role("img")).to_have_attribute("aria-label", re.compile("local/0: "))
    expect(page.locator("#used-warning")).to_be_empty()
    assert page.locator("[data-used='power_watts']").count() == 0, "CPU slots know no power"
    world.post(f"/api/jobs/{job}/cancel")


def test_curves_of_several_jobs_are_drawn_on_one_chart(world: World, open_page: OpenPage) -> None:
    jobs = [world.submit(epochs, 0.1, name="drawn", tags=["set"]) for epochs in (3, 5)]
    for job in jobs:
        world.wait_end(job)
    page = open_page(world)
    page.get_by_label("Filter").fill("tag:set")
    page.locator("#bulk-curves").click()
    values = page.locator("#chart .values li")
    expect(values).to_have_count(2)
    expect(values.nth(1)).to_contain_text(f"{jobs[0]} 0.3333 at epoch 3")
    expect(values.nth(0)).to_contain_text(f"{jobs[1]} 0.2 at epoch 5")
    expect(page.locator("#chart canvas")).to_be_visible()
    page.locator("#against").select_option("samples")
    expect(values.nth(0)).to_contain_text("0.2 at 500 samples")
    page.locator("#curve").select_option("accuracy")
    expect(values.nth(0)).to_contain_text("96.9 % at 500 samples")
    page.get_by_role("checkbox", name=jobs[0]).uncheck()
    expect(values).to_have_count(1)
    page.reload()
    expect(values).to_have_count(1)
    expect(values).to_contain_text(f"{jobs[1]} 96.9 % at 500 samples")
    page.get_by_role("button", name="None").click()
    expect(page.get_by_text("Choose jobs to compare.")).to_be_visible()


def test_output_is_shown_as_a_terminal_would_and_never_as_html(
    world: World, open_page: OpenPage
) -> None:
    script = (
        "print('\\x1b[31mred\\x1b[0m <img src=x onerror=alert(1)>'); "
        "print('10 %\\r100 %'); print('x' * 40000); print('end')"
    )
    job = world.run([sys.executable, "-c", script], gpus=1, name="<script>alert(1)</script>")
    world.wait_end(job)
    page = open_page(world, f"/jobs/{job}")
    output = page.locator("#output")
    expect(output).to_contain_text("end")
    page.get_by_role("button", name="Show earlier output").click()
    expect(output).to_contain_text("red <img src=x onerror=alert(1)>\n100 %\nxxx")
    assert page.locator("#output img").count() == 0


def test_the_history_of_the_cluster_is_drawn(world: World, open_page: OpenPage) -> None:
    job = world.run(["sleep", "1000"], gpus=3, name="counted")
    world.wait_state(job, "running")
    page = open_page(world, "/history")
    page.locator("#window").select_option("3600")
    expect(page.locator("#step")).to_have_text("in steps of a minute")
    expect(page.locator("[data-chart=gpus] .values")).to_contain_text("in the cluster 4 at")
    expect(page.locator("#history canvas")).to_have_count(4)
    world.post(f"/api/jobs/{job}/cancel")


def test_a_replay_is_started_watched_and_shown_beside_what_happened(
    world: World, open_page: OpenPage
) -> None:
    job = world.submit(3, 0.1, name="replayed")
    world.wait_end(job)
    page = open_page(world, "/whatif")
    page.locator("#policy").select_option("srtf")
    page.locator("#hours").fill("1")
    page.get_by_role("button", name="Replay", exact=True).click()
    expect(page.locator("#result-title")).to_have_text("srtf instead of fifo")
    expect(page.locator("#progress")).to_be_hidden()
    expect(page.locator("#means tr[data-account=whatif]")).to_contain_text("what if (srtf)")
    expect(page.locator(f"#replayed tr[data-job='{job}'] td").nth(2)).to_have_text(
        re.compile(r"0:\d\d")
    )
    expect(page.locator("#assumptions")).to_contain_text("srtf knows how long each job will take")
    page.reload()
    expect(page.locator("#result-title")).to_have_text("srtf instead of fifo")


def test_the_timeline_and_the_decisions_name_the_jobs(world: World, open_page: OpenPage) -> None:
    page = open_page(world, "/timeline")
    job = world.submit(4, 0.4, name="drawn")
    expect(page.locator(f"#timeline a[href='/jobs/{job}'] rect").first).to_be_visible()
    expect(page.locator("#legend")).to_contain_text(job)
    page.get_by_text("As a table").click()
    cells = page.locator("#as-table tbody tr").filter(has_text=job).first
    expect(cells).to_contain_text("local/")
    page.get_by_role("link", name="Decisions").click()
    expect(page.locator("#decisions")).to_contain_text(f"{job}: Started on")
    world.wait_end(job)


@pytest.mark.parametrize(
    ("path", "named_in"),
    [
        ("/", "#ended"),
        ("/curves", "#jobs"),
        ("/timeline", "#legend"),
        ("/decisions", "#decisions"),
        ("/jobs/JOB", "h1"),
    ],
)
def test_nothing_is_wider_than_a_phone(
    world: World, open_page: OpenPage, path: str, named_in: str
) -> None:
    name = "a-name-that-is-quite-long-for-a-phone"
    job = world.run(["sh", "-c", "echo " + "long" * 100], gpus=1, name=name)
    world.wait_end(job)
    page = open_page(world, path.replace("JOB", job), viewport=PHONE, has_touch=True)
    expect(page.locator(named_in)).to_contain_text(job)
    if "JOB" in path:
        expect(page.locator("#output")).to_contain_text("longlong")
    wide = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1], wide


def test_dark_as_the_system_or_as_chosen(world: World, open_page: OpenPage) -> None:
    page = open_page(world, color_scheme="light")
    light = background(page)
    page.emulate_media(color_scheme="dark")
    dark = background(page)
    assert dark != light
    button = page.get_by_role("button", name="Theme")
    button.click()
    expect(button).to_have_text("Theme: light")
    assert background(page) == light
    page.reload()
    expect(button).to_have_text("Theme: light")
    assert background(page) == light, "the choice is kept"
    page.emulate_media(color_scheme="light")
    button.click()
    assert background(page) == dark


def test_a_link_logs_in_once(world: World, open_page: OpenPage) -> None:
    page = open_page(world, log_in=False)
    page.goto("/")
    expect(page.get_by_text("This browser is not logged in.")).to_be_visible()
    link = world.post("/api/link")["url"]
    page.goto(link)
    expect(page.locator("#connection")).to_have_text("live")
    assert page.url.endswith("/"), "the code is not in the address any more"
    cookies = page.context.cookies()
    assert [(c["httpOnly"], c["sameSite"]) for c in cookies] == [(True, "Strict")]
    assert page.evaluate("document.cookie") == ""

    other = open_page(world, log_in=False)
    other.goto(link)
    expect(other.get_by_role("alert")).to_contain_text("used before")
    other.goto("/")
    expect(other.get_by_text("This browser is not logged in.")).to_be_visible()

    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_text("This browser is not logged in.")).to_be_visible()


def test_it_says_when_the_controller_is_away_and_comes_back_by_itself(
    make_world: Callable[..., World], open_page: OpenPage
) -> None:
    world = make_world()
    job = world.submit(100_000, 0.5, name="goes-on")
    page = open_page(world)
    job_page = open_page(world, f"/jobs/{job}")
    expect(row(page, "running", job)).to_be_visible()
    world.wait_epochs(job, 1)
    world.kill()
    expect(page.locator("#connection")).to_have_text("controller away")
    expect(page.locator("#away")).to_contain_text("Training goes on without it")
    expect(row(page, "running", job)).to_be_visible()
    world.up()
    expect(page.locator("#connection")).to_have_text("live")
    expect(page.locator("#away")).to_be_hidden()
    expect(job_page.locator("#connection")).to_have_text("live")
    before = world.job(job)["epochs"]
    world.wait_epochs(job, before + 1)
    expect(job_page.locator("#output")).to_contain_text(f"epoch {before + 1}")
    lines = job_page.locator("#output").inner_text().split("\n")
    told = [line for line in lines if line.startswith("epoch")]
    assert len(told) == len(set(told)), "nothing is shown twice after it came back"
    world.post(f"/api/jobs/{job}/cancel")
    expect(row(page, "ended", job)).to_contain_text("cancelled")


def test_it_can_be_used_with_keys_and_read_aloud(world: World, open_page: OpenPage) -> None:
    job = world.run(["sleep", "1000"], gpus=1, name="spoken")
    page = open_page(world)
    expect(row(page, "running", job)).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    for landmark in ("banner", "navigation", "main", "contentinfo"):
        assert page.get_by_role(landmark).count() == 1, landmark
    assert page.locator("h1").count() == 1
    table = page.get_by_role("table", name="Jobs that have GPUs")
    expect(table.get_by_role("columnheader", name="Accuracy")).to_be_visible()
    expect(table.get_by_role("rowheader", name=re.compile(job))).to_be_visible()
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("button, a, select, input")].filter(
          (node) => !(node.textContent.trim() || node.ariaLabel || node.labels?.length)).length"""
    )
    assert unnamed == 0
    page.set_viewport_size({"width": 360, "height": 740})
    expect(table.get_by_role("rowheader", name=re.compile(job))).to_be_visible()
    world.post(f"/api/jobs/{job}/cancel")
    world.wait_end(job)


def test_a_user_sees_that_a_gpu_is_taken_but_not_by_which_job(
    world: World, open_page: OpenPage
) -> None:
    token = world.post("/api/users", {"name": "eve"}, 201)["token"]
    job = world.run(["sleep", "1000"], gpus=1, name="hidden")
    wait_for(lambda: world.job(job)["state"] == "running")
    link = world.http.post("/api/link", headers={"Authorization": f"Bearer {token}"}).json()["url"]
    page = open_page(world, log_in=False)
    page.goto(link)
    expect(page.locator(".slot.other")).to_contain_text("a job of ")
    expect(page.get_by_text("Nothing runs.")).to_be_visible()
    assert job not in page.content()
    page.goto(f"/jobs/{job}")
    expect(page.get_by_role("heading", name="Not known")).to_be_visible()
    world.post(f"/api/jobs/{job}/cancel")
    world.wait_end(job)


def test_a_gpu_that_was_set_aside_is_shown_with_its_reason(
    make_world: Callable[..., World], open_page: OpenPage
) -> None:
    world = make_world()
    page = open_page(world)
    expect(page.locator("#map-hint")).to_be_hidden()
    world.post("/api/cluster/drain", {"place": "local/1"})
    tile = page.locator('[data-slot="local/1"]')
    expect(tile).to_contain_text("drained by")
    expect(page.locator("#map-summary")).to_contain_text("1 set aside")
    expect(page.locator("#map-hint")).to_be_visible()
    world.post("/api/cluster/undrain", {"place": "local/1"})
    expect(tile).to_contain_text("free")
    expect(page.locator("#map-hint")).to_be_hidden()
    world.post("/api/cluster/drain", {"place": "local"})  # the whole node
    expect(page.locator("#map-summary")).to_contain_text("4 set aside")
    expect(page.locator("#map-hint")).to_be_visible()
    world.post("/api/cluster/undrain", {"place": "local"})
    page.get_by_role("link", name="Timeline").click()
    expect(page.locator("#timeline")).to_contain_text("Nothing has run in this time.")
    page.get_by_role("link", name="HTTP interface").click()
    expect(page.get_by_role("heading", name="POST /api/jobs", exact=True)).to_be_visible()
