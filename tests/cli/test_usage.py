"""`ones usage` and `ones user budget`."""

from __future__ import annotations

from tests.cli.test_commands import Ones, ones
from tests.control.inside import Inside
from tests.processes import wait_for

__all__ = ["ones"]


def test_usage_is_shown_as_a_table_csv_and_json(served: Inside, ones: Ones) -> None:
    assert ones("usage").err == "no GPU was used in this time\n"
    job = served.submit(command=["sleep", "0.1"], tags=["t"]).json()["id"]
    wait_for(lambda: served.http.get(f"/api/jobs/{job}").json()["ended_at"] is not None)
    (row,) = ones("usage", "--by", "user,tag,day", "--json").json
    assert row["tag"] == "t"
    lines = ones("usage", "-b", "user, day", "--csv").out.splitlines()
    assert lines[0] == "user,day,gpu_hours"
    assert lines[1].startswith(f"{row['user']},{row['day']},")
    assert "GPU hours" in ones("usage", "-u", row["user"]).out
    assert "past use does not count" in ones("usage", "--fair-share").err
    assert ones("usage", "--fair-share", "--json").json == {"half_life_hours": 0.0, "users": []}
    assert "did you mean 'tag'?" in ones("usage", "--by", "tags").err
    assert "not together with --csv" in ones("usage", "--csv", "--json").err


def test_a_budget_is_set_and_shown(served: Inside, ones: Ones) -> None:
    served.add_user("ann")
    assert ones("user", "budget", "ann", "12.5").code == 0
    assert "12.5" in ones("user", "budget").out
    (hers,) = ones("user", "budget", "ann", "--json").json
    assert hers == {"user": "ann", "gpu_hours": 12.5, "used": 0.0}
    assert ones("user", "budget", "ann", "none", "--json").json[0]["gpu_hours"] is None
    assert "'much' is neither a number nor `none`" in ones("user", "budget", "ann", "much").err
    assert "did you mean 'ann'?" in ones("user", "budget", "anna").err


def test_the_history_of_the_cluster_is_shown(served: Inside, ones: Ones) -> None:
    shown = ones("cluster", "history", "--since", "1h", "--rows", "5", "--json").json
    assert len(shown["points"]) <= 5
    assert shown["points"][-1]["gpus"] == 2
    assert shown["step_seconds"] % 60 == 0
    assert "GPUs used" in ones("cluster", "history", "--since", "1h").out
    assert "'yesterday' is neither a duration" in ones(
        "cluster", "history", "--since", "yesterday"
    ).err  # fmt: skip


def test_the_last_hours_are_replayed_under_another_policy(served: Inside, ones: Ones) -> None:
    job = served.submit(command=["sleep", "0.1"]).json()["id"]
    wait_for(lambda: served.http.get(f"/api/jobs/{job}").json()["ended_at"] is not None)
    found = ones("whatif", "-p", "equi", "--hours", "1", "--json").json
    assert job in [row["job"] for row in found["jobs"]]
    shown = ones("whatif", "-p", "equi", "--hours", "1").out
    assert "what happened (fifo)" in shown
    assert "what if (equi)" in shown
    assert "without reports: the same time on the same number of GPUs" in shown
    assert "did you mean 'equi'?" in ones("whatif", "-p", "equu").err
