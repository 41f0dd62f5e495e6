"""Jobs that the policy does not admit: `oasis` refuses a job that cannot end near its deadline."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.control.inside import Inside, inside
from tests.processes import wait_for


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    with inside(tmp_path_factory.mktemp("refusal"), policy="oasis") as found:
        yield found


def test_a_refused_job_ends_with_the_reason_and_never_runs(service: Inside) -> None:
    job = service.submit(deadline_seconds=1.0, priority=5).json()["id"]
    card = service.http.get(f"/api/jobs/{job}").json
    wait_for(lambda: card()["ended_at"] is not None, "it does not end")
    found = card()
    assert (found["state"], found["started_at"], found["run_seconds"]) == ("refused", None, 0.0)
    assert found["priority"] == 5.0
    assert found["message"].startswith("Refused: the GPUs that it needs cost ")
    assert found["deadline"] == pytest.approx(found["submitted_at"] + 1.0)
    assert service.http.get(f"/api/jobs/{job}/launches").json() == []
    story = wait_for(
        lambda: [
            line["text"]
            for line in service.http.get(f"/api/jobs/{job}/story").json()
            if line["text"].startswith("Ended: refused. Refused: the GPUs")
        ],
        "its end is not told",
    )
    assert len(story) == 1
    later = service.submit(after=[job]).json()["id"]
    message = wait_for(
        lambda: service.http.get(f"/api/jobs/{later}").json()["message"], "it waits for ever"
    )
    assert message.startswith(f"It can never start, because {job} has ended: refused")


def test_a_job_with_time_is_admitted(service: Inside) -> None:
    job = service.submit(deadline_seconds=86_400.0).json()["id"]
    card = service.http.get(f"/api/jobs/{job}").json
    wait_for(lambda: card()["workers"], "it does not start")
    assert card()["ended_at"] is None
    assert service.http.post(f"/api/jobs/{job}/cancel").status_code == 200


@pytest.mark.parametrize("seconds", [0, -1, 1e10, "soon"])
def test_a_deadline_is_a_time_ahead(service: Inside, seconds: object) -> None:
    answer = service.submit(deadline_seconds=seconds)
    assert answer.status_code == 422
    assert "deadline_seconds" in answer.text
