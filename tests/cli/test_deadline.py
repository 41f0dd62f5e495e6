"""`ones submit --deadline`, and what commands say about a job that the policy refuses."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from ones.cli.words import moment
from ones.policies import limits_live
from tests.cli.test_commands import Ones, ones
from tests.control.inside import Inside, inside

__all__ = ["ones"]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    with inside(tmp_path_factory.mktemp("deadline"), policy="oasis") as found:
        yield found


@pytest.mark.usefixtures("served")
def test_a_refused_job_is_told_by_every_command(ones: Ones) -> None:
    waited = ones("submit", "-g", "1", "--deadline", "1s", "--wait", "--", "true")
    job = waited.out.strip()
    assert (waited.code, f"{job}: refused (Refused: the GPUs" in waited.err) == (1, True)
    assert ones("wait", job).code == 1
    assert job in ones("ps", "--state", "refused").out
    assert "Ended: refused. Refused: the GPUs that it needs cost" in ones("why", job).out
    assert "Submit it later" in ones("show", job).out
    assert "has not started: refused" in ones("logs", job).err


@pytest.mark.usefixtures("served")
def test_a_deadline_is_a_duration_or_a_date(ones: Ones, tmp_path: Path) -> None:
    ends = (datetime.now() + timedelta(days=2)).replace(microsecond=0)  # noqa: DTZ005
    file = tmp_path / "job.toml"
    file.write_text(f'command = ["sleep", "1"]\ngpus = 1\ndeadline = {ends.isoformat()}\n')
    script = tmp_path / "job.sh"
    script.write_text("#ONES --deadline 2h -g 1\n")
    dated = ones("submit", "-F", file).out.strip()
    shown = ones("show", dated, "--json").json
    assert shown["deadline"] == pytest.approx(ends.timestamp(), abs=60)
    assert moment(shown["deadline"]) in ones("show", dated).out
    written = ones("show", ones("submit", "job.sh").out.strip(), "--json").json
    assert written["deadline"] == pytest.approx(written["submitted_at"] + 7200.0)
    for text, problem in (
        ("soon", "'soon' is neither a duration (90m, 2h, 1-02:00) nor a date (2026-01-31T18:00)"),
        ("2020-01-01", "'2020-01-01' is not in the future"),
        ("0", "'0' is not in the future"),
    ):
        wrong = ones("submit", "--deadline", text, "--", "true")
        assert (wrong.code, wrong.err) == (2, f"ones: --deadline: {problem}\n")
    assert time.time() < shown["deadline"]


def test_up_can_say_what_a_policy_does_in_simulations_only() -> None:
    assert "in simulations only" in limits_live("gandiva")
    assert limits_live("ones") == ""
