"""Debian's Chromium, driven by Playwright. Where there is none, these tests are skipped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.control.conftest import make_world, world
from tests.control.world import World

__all__ = ["make_world", "world"]

PATIENCE_MS = 120_000  # a busy machine is slow; a broken page is slower

#: a page of the service, of its admin, in a window of this size
OpenPage = Callable[..., Page]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("no chromium here: tools/system-packages installs it, as root")
    expect.set_options(timeout=PATIENCE_MS)
    # a sandbox of its own is denied to root; nothing but our page is opened
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=path, args=arguments, timeout=PATIENCE_MS
        )
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Logged in by a link, unless another path is given. Errors of scripts fail the test."""
    contexts = []
    problems: list[str] = []

    def opened(world: World, path: str = "/", *, log_in: bool = True, **more: Any) -> Page:
        context = browser.new_context(base_url=str(world.http.base_url), **more)
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda problem: problems.append(str(problem)))
        page.on(
            "console",
            lambda said: problems.append(said.text) if "Content Security" in said.text else None,
        )
        if log_in:
            page.goto(world.post("/api/link")["url"])
            if path != "/":
                page.goto(path)
            expect(page.locator("#connection")).to_have_text("live")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not problems, problems
