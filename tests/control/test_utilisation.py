"""What workers use: curves with bounded memory, idle GPUs, slow workers, and what users see."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ones.config import ServiceSettings
from ones.control.live.jobs import NOW
from ones.control.readmodels.job_cards import JobCard, WorkerCard
from ones.control.server import utilisation_limits
from ones.control.utilisation.board import (
    FRESH_SECONDS,
    UtilisationBoard,
    UtilisationLimits,
)
from ones.control.utilisation.curves import MOST_FORMER, MOST_POINTS, JobCurves
from ones.control.utilisation.watch import UtilisationWatch
from ones.core import events as ev
from ones.core.job import JobId
from ones.errors import InvalidSettingError
from ones.wire.samples import SAMPLE_SECONDS, OwnSteps, SlotSample
from tests.control.inside import inside, new_job
from tests.control.test_usage import CARD
from tests.processes import wait_for

MINUTE = 60.0


def sample(slot: str, busy: float | None = 0.5, job: str = "j", **more: Any) -> SlotSample:
    return SlotSample(launch=f"{job}~1~x", slot=slot, utilisation=busy, **more)


# curves


def test_curves_lose_resolution_instead_of_growing() -> None:
    curves = JobCurves(0.0)
    for index in range(4 * MOST_POINTS):
        curves.add(index * SAMPLE_SECONDS, sample("n/0", index % 2 / 2.0, power_watts=None))
    at = curves.times()
    assert (len(at), curves.seconds) == (MOST_POINTS, 4 * SAMPLE_SECONDS)
    assert (at[0], at[-1]) == (20.0, (MOST_POINTS - 0.5) * 40.0)
    assert curves.values("n/0", "utilisation", len(at)) == [0.25] * MOST_POINTS
    assert curves.values("n/0", "power_watts", len(at)) == [None] * MOST_POINTS


def test_a_worker_that_comes_later_has_no_values_before() -> None:
    curves = JobCurves(100.0)
    for at in (100.0, 110.0, 120.0):
        curves.add(at, sample("n/0"))
    curves.add(121.0, sample("n/1", 1.0))
    curves.add(122.0, sample("n/1", 0.5))
    assert curves.values("n/1", "utilisation", 3) == [None, None, 0.75]
    curves.add(5000.0, sample("n/0"))  # the others left long ago
    assert curves.values("n/1", "utilisation", 3)[1:] == [None, None]


def test_curves_of_slots_that_a_job_left_are_dropped() -> None:
    curves = JobCurves(0.0)
    for index in range(MOST_FORMER + 10):
        curves.add(index * SAMPLE_SECONDS, sample(f"n/{index}"))
    curves.drop_former({"n/0"})
    assert len(curves.slots) == MOST_FORMER + 1
    assert {"n/0", f"n/{MOST_FORMER + 9}"} <= set(curves.slots)
    assert "n/1" not in curves.slots


# idle and slow workers


class Site:
    """One job on some slots, a clock, and what was said."""

    def __init__(self, *slots: str, **limits: float) -> None:
        self.now = 1000.0
        self.card = card_on(*slots)
        chosen = UtilisationLimits(**{"idle_warn_seconds": 5 * MINUTE, **limits})
        self.board = UtilisationBoard(chosen, lambda: self.now, lambda job: job == "j")
        self.events: list[ev.Event] = []
        self.notes: list[str] = []
        self.watch = self.new_watch()

    def new_watch(self) -> UtilisationWatch:
        def notify(card: JobCard, text: str) -> None:
            self.notes.append(text)

        return UtilisationWatch(self.board, lambda: [self.card], self.events.append, notify)

    def go_on(self, minutes: float, samples: Callable[[], list[SlotSample]]) -> None:
        end = self.now + minutes * MINUTE
        while self.now < end:
            self.now += SAMPLE_SECONDS
            self.board.take(samples())
            self.watch.check()

    @property
    def warnings(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, ev.JobWarned)]


def card_on(*slots: str) -> JobCard:
    workers = tuple(WorkerCard(gpu=slot, batch=8) for slot in slots)
    return replace(CARD, id="j", workers=workers)


def test_an_idle_gpu_is_shown_and_warned_of_once() -> None:
    site = Site("n/0", "n/1")
    busy, idle = sample("n/0", 0.9), sample("n/1", 0.04)
    site.go_on(4.9, lambda: [busy, idle])
    assert not site.events
    site.go_on(2.0, lambda: [busy, idle])
    assert site.warnings == ["Of its 2 GPUs, 1 has been idle for 5 min: n/1."]
    assert site.notes == site.warnings
    shown = site.board.shown(site.card)
    assert (shown["idle_gpus"], shown["utilisation"]) == (["n/1"], pytest.approx(0.47))
    site.go_on(30.0, lambda: [busy, idle])
    assert len(site.events) == 1

    site.go_on(0.2, lambda: [busy, busy, sample("n/1", 0.06)])
    assert not site.board.shown(site.card)["idle_gpus"]
    site.go_on(6.0, lambda: [busy, idle])
    assert len(site.warnings) == 2


def test_a_job_that_is_all_idle_is_ended_if_a_setting_says_so() -> None:
    site = Site("n/0", "n/1", idle_end_seconds=10 * MINUTE)
    site.go_on(20.0, lambda: [sample("n/0", 0.0), sample("n/1", 0.5)])
    assert not any(isinstance(event, ev.CancelRequested) for event in site.events)
    site.go_on(9.0, lambda: [sample("n/0", 0.0), sample("n/1", 0.0)])
    assert not any(isinstance(event, ev.CancelRequested) for event in site.events)
    site.go_on(3.0, lambda: [sample("n/0", 0.0), sample("n/1", 0.0)])
    ends = [event for event in site.events if isinstance(event, ev.CancelRequested)]
    why = "the limit of 10 min for idle GPUs (setting idle_end_minutes)"
    assert ends == [ev.CancelRequested(NOW, JobId("j"), why)]


def test_by_default_no_job_is_ended() -> None:
    site = Site("n/0")
    site.go_on(600.0, lambda: [sample("n/0", 0.0)])
    assert site.warnings == ["Its GPU has been idle for 5 min: n/0."]
    assert len(site.events) == 1


def test_a_gpu_of_which_nothing_is_known_is_not_idle() -> None:
    """As a part of a divided GPU, or with a driver that does not answer."""
    site = Site("n/0", "n/1", idle_end_seconds=MINUTE)
    site.go_on(20.0, lambda: [sample("n/0", None), sample("n/1", 0.0)])
    (warning,) = site.warnings
    assert warning.endswith("n/1. A job that leaves all its GPUs idle is ended after 60 s.")
    assert len(site.events) == 1


def test_a_node_that_is_silent_is_not_judged() -> None:
    site = Site("n/0", idle_end_seconds=8 * MINUTE)
    site.go_on(4.0, lambda: [sample("n/0", 0.0)])
    site.go_on(20.0, list)
    assert not site.events
    assert site.board.shown(site.card)["utilisation"] is None
    site.now += FRESH_SECONDS
    assert not site.board.all_uses()


def test_a_new_worker_on_the_slot_is_not_idle_since_before() -> None:
    site = Site("n/0")
    site.go_on(4.0, lambda: [sample("n/0", 0.0)])
    later = SlotSample(launch="j~2~x", slot="n/0", utilisation=0.0)
    site.go_on(4.0, lambda: [later])
    assert not site.events


def own(slot: str, seconds: float, samples: float = 32.0) -> SlotSample:
    return sample(slot, own_steps=OwnSteps(seconds=seconds, samples=samples))


def test_a_worker_that_stays_slower_than_its_peers_is_named() -> None:
    site = Site("n/0", "n/1", "n/2")
    usual = [own("n/0", 0.1), own("n/1", 0.11)]
    site.go_on(4.0, lambda: [*usual, own("n/2", 0.2)])
    site.go_on(0.2, lambda: [*usual, own("n/2", 0.12)])  # it was so for a while only
    site.go_on(4.9, lambda: [*usual, own("n/2", 0.2)])
    assert not site.events
    site.go_on(1.0, lambda: [*usual, own("n/2", 0.2)])
    text = "A worker has taken longer for a step than the others for 5 min: n/2 (1.8 times)."
    assert site.warnings == [text]
    assert site.board.shown(site.card)["slow_gpus"] == ["n/2"]
    (slow,) = [w for w in site.board.workers("j") if w["gpu"] == "n/2"]
    assert (slow["step_seconds"], slow["slowdown"]) == (0.2, pytest.approx(0.2 / 0.11))
    assert not any(isinstance(event, ev.CancelRequested) for event in site.events)


def test_of_two_workers_the_slower_one_is_named_and_a_larger_share_is_not_slow() -> None:
    site = Site("n/0", "n/1")
    site.go_on(6.0, lambda: [own("n/0", 0.1, 32), own("n/1", 0.2, 64)])
    site.go_on(6.0, lambda: [own("n/0", 0.1, 32), sample("n/1")])  # one alone has no peer
    assert not site.events
    site.go_on(6.0, lambda: [own("n/0", 0.1), own("n/1", 0.15)])
    assert [text.rpartition(": ")[2] for text in site.warnings] == ["n/1 (1.5 times)."]


def test_limits_of_0_turn_the_warnings_off() -> None:
    site = Site("n/0", "n/1", idle_warn_seconds=0.0, slow_by=0.0)
    slow, idle = own("n/1", 9.0), replace(own("n/0", 0.1), utilisation=0.0)
    site.go_on(60.0, lambda: [slow, idle])
    assert not site.events


# what is kept


def test_ended_and_unknown_jobs_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ones.control.utilisation.board.MOST_ENDED", 25)
    site = Site("n/0")
    board, live = site.board, {"j", "k1", "k2", "k3"}
    board._is_live = live.__contains__
    board.take([sample("n/0"), sample("n/0", job="other")])
    assert board.curves("other", 9)["all"] is None
    board.on_card(card_on("n/1"))
    assert not board.uses("j"), "it has left the slot"
    board.on_card(replace(site.card, ended_at=site.now, workers=()))
    assert board.curves("j", 9)["all"] is not None
    assert board._ended == {"j": 1}
    for job in ("k1", "k2", "k3"):
        board.take([sample(f"n/{i}", job=job) for i in range(10)])
        board.on_card(replace(CARD, id=job))  # it waits
        board.on_card(replace(CARD, id=job, ended_at=site.now))
        board.on_card(replace(CARD, id=job, ended_at=site.now))  # shown again
        live.discard(job)
        board.take([sample("n/0", job=job)])  # too late
    assert [job for job in ("j", "k1", "k2", "k3") if board.version(job)] == ["k2", "k3"]
    assert not board.all_uses()


def test_curves_of_many_workers_are_summed_up() -> None:
    site = Site("n/0", "n/1")
    site.board.take([sample("n/0", 0.2), sample("n/1", None)])
    found = site.board.curves("j", 1)
    assert [each["gpu"] for each in found["curves"]] == ["n/0"]
    assert found["all"]["utilisation"] == [pytest.approx(0.2)]
    assert found["all"]["power_watts"] == [None]


# settings


def test_settings_are_minutes_and_percentages() -> None:
    limits = utilisation_limits(
        ServiceSettings(idle_below_percent=10, idle_end_minutes=60, slow_worker_percent=50)
    )
    assert limits == UtilisationLimits(idle_below=0.1, idle_end_seconds=3600.0, slow_by=0.5)
    assert utilisation_limits(ServiceSettings()) == UtilisationLimits()
    for wrong in ({"idle_below_percent": 101.0}, {"idle_end_minutes": -1.0}):
        with pytest.raises(InvalidSettingError, match=next(iter(wrong))):
            utilisation_limits(ServiceSettings(**wrong))  # type: ignore[arg-type]


# the service


def test_users_see_what_a_job_uses_and_are_told_that_it_is_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ones.launchers.local.SAMPLE_SECONDS", 0.1)
    monkeypatch.setattr("ones.control.utilisation.watch.SAMPLE_SECONDS", 0.1)
    told = tmp_path / "told"
    with inside(tmp_path, slots=2) as world:
        get = world.http.get
        world.service.utilisation.limits = UtilisationLimits(idle_warn_seconds=0.2)
        command = ["sh", "-c", f"cat >> {told}"]
        wish = {"command": command, "events": ["warning"]}
        assert world.http.post("/api/notifications", json=wish).status_code == 201
        program = ["-c", "while True: pass"]
        busy = world.submit(name="busy", command=[sys.executable, *program]).json()["id"]
        idle = world.submit(name="idle").json()["id"]

        wait_for(lambda: (get(f"/api/jobs/{busy}").json()["utilisation"] or 0.0) > 0.0)
        wait_for(lambda: get(f"/api/jobs/{idle}").json()["idle_gpus"])
        assert wait_for(lambda: _warnings(get(f"/api/jobs/{idle}/story").json())) == [
            "Warning: Its GPU has been idle for 0.2 s: local/1."
        ]
        wait_for(lambda: told.exists() and told.read_text().endswith("}"))
        message = json.loads(told.read_text())
        assert (message["event"], message["job"]["id"]) == ("warning", idle)
        assert message["text"] == f"{idle} warning: Its GPU has been idle for 0.2 s: local/1."

        found = get(f"/api/jobs/{busy}/utilisation").json()
        (worker,) = found["workers"]
        assert worker["gpu"] == "local/0"
        assert worker["memory_mb"] > 0
        assert len(found["at"]) == len(found["curves"][0]["utilisation"]) >= 1
        metrics = world.bare.get("/metrics").text
        for name in ("utilisation_ratio", "memory_bytes", "cpus"):
            assert f'ones_worker_{name}{{slot="local/0"}}' in metrics
        assert "ones_slots_idle 1.0" in metrics
        assert busy not in metrics
        stranger = world.add_user("eve")
        assert get(f"/api/jobs/{busy}/utilisation", headers=stranger).status_code == 404

        entries = world.service.recorder.number
        before = world.service.utilisation.version(busy)
        wait_for(lambda: world.service.utilisation.version(busy) > before + 3)
        assert world.service.recorder.number == entries, "samples are not logged"


def _warnings(story: list[dict[str, Any]]) -> list[str]:
    return [line["text"] for line in story if line["kind"] == "warning"]


def test_a_job_without_work_is_ended_by_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ones.launchers.local.SAMPLE_SECONDS", 0.1)
    monkeypatch.setattr("ones.control.utilisation.watch.SAMPLE_SECONDS", 0.1)
    with inside(tmp_path) as world:
        world.service.utilisation.limits = UtilisationLimits(idle_end_seconds=0.2)
        job = world.http.post("/api/jobs", json=new_job()).json()["id"]
        wait_for(lambda: world.http.get(f"/api/jobs/{job}").json()["state"] == "cancelled")
        message = world.http.get(f"/api/jobs/{job}").json()["message"]
        assert "the limit of 0.2 s for idle GPUs (setting idle_end_minutes)" in message
