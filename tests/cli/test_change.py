"""`ones set`, `hold`, `release`, `rerun`, `cancel`: what people type."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from ones.cli import jobs as job_commands
from ones.cli.durations import seconds_of
from ones.errors import UserError
from tests.cli.test_commands import Ones, ones
from tests.control.inside import Inside

__all__ = ["ones"]


def submit(served: Inside, **more: Any) -> str:
    return str(served.submit(**more).json()["id"])


def test_a_job_is_set_held_and_released(served: Inside, ones: Ones) -> None:
    hog = submit(served, gpus=2)
    job = submit(served, gpus=None, tags=["old"])
    changed = ones("set", job, "-p", "4", "--max-gpus", "2", "-t", "1-02:00", "--tag", "new")
    assert (changed.code, changed.out) == (0, f"{job}: waiting\n")
    shown = ones("show", job, "--json").json
    values = (shown["priority"], shown["max_gpus"], shown["max_run_seconds"], shown["tags"])
    assert values == (4.0, 2, 93_600.0, ["new"])
    assert ones("hold", job).out == f"{job}: held\n"
    assert "On hold, by" in ones("ps").out
    assert ones("release", job, "no-such-job").code == 2
    assert ones("release", job).err == ""
    assert ones("hold", hog).err.startswith(f"ones: job {hog}: it runs with a fixed size")
    nothing = ones("set", job)
    assert "nothing to change; give --priority" in nothing.err
    assert "put on hold by" in ones("why", job).out.lower()


def test_a_rerun_prints_the_new_id(served: Inside, ones: Ones) -> None:
    job = submit(served, name="again")
    again = ones("rerun", job)
    assert (again.code, again.out.startswith("again-")) == (0, True)
    assert again.out.strip() != job


def test_many_jobs_are_cancelled_only_if_that_is_confirmed(
    served: Inside, ones: Ones, monkeypatch: pytest.MonkeyPatch
) -> None:
    tagged = [submit(served, tags=["sweep"]) for _ in range(2)]
    other = submit(served, name="bert-large")
    refused = ones("cancel", "--tag", "sweep")
    assert (refused.code, "this ends 2 jobs; add --yes" in refused.err) == (2, True)
    monkeypatch.setattr(job_commands, "_on_terminal", lambda: True)
    asked: list[str] = []

    def answer(question: str, *, err: bool) -> bool:
        asked.append(question)
        return False

    monkeypatch.setattr(typer, "confirm", answer)
    assert "nothing was cancelled" in ones("cancel", "--tag", "sweep").err
    assert asked == [f"End {tagged[0]}, {tagged[1]}?"]
    assert ones("cancel", "--tag", "sweep", "--yes").code == 0
    assert [job["id"] for job in ones("ps", "--json").json] == [other]
    assert "no job matches" in ones("cancel", "--name", "vgg*", "-y").err
    assert ones("cancel", "--name", "bert*", "-y").out.startswith(f"{other}: ")
    assert "give either job ids, or --all" in ones("cancel").err
    assert "give either job ids, or --all" in ones("cancel", other, "--all").err


@pytest.mark.parametrize("text", ["soon", "-5", "2 days", "1:2", "nan", "inf", ""])
def test_a_text_that_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"--max-run: .* is not a duration such as 90s"):
        seconds_of(text, "--max-run")
