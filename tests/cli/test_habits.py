"""What users of Slurm and others type out of habit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.test_commands import Ones, ones
from tests.control.inside import Inside
from tests.processes import wait_for

__all__ = ["ones"]


def job_of(served: Inside, job: str) -> dict[str, object]:
    found: dict[str, object] = served.http.get(f"/api/jobs/{job}").json()
    return found


def test_a_job_is_described_in_a_yaml_file(served: Inside, ones: Ones, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("command: [sleep, '100']\nname: fromyaml\nmax-run: 2h\ntag: [a, b]\n")
    job = ones("submit", "-F", file, "-g", "1", "-p", "2").out.strip()
    found = job_of(served, job)
    assert (found["name"], found["tags"], found["priority"]) == ("fromyaml", ["a", "b"], 2.0)
    assert found["max_run_seconds"] == 7200.0
    file.write_text("- command")
    assert "is not a table of options such as" in ones("submit", "-F", file).err
    file.write_text("{")
    assert f"ones: {file}: is not YAML" in ones("submit", "-F", file).err


def test_a_script_says_what_it_needs(served: Inside, ones: Ones, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/bash\n#ONES -n scripted --tag x  # a comment\n#ONES -t 30:00 --tag y\n"
    )
    job = ones("submit", "-p", "1", "job.sh", "word").out.strip()
    found = job_of(served, job)
    assert (found["name"], found["max_run_seconds"]) == ("scripted", 1800.0)
    assert (found["priority"], found["tags"]) == (1.0, ["x", "y"])
    assert str(found["command"][0]).endswith("bash")  # type: ignore[index]
    assert found["command"][1:] == ["job.sh", "word"]  # type: ignore[index]
    assert job_of(served, ones("submit", "-n", "mine", "job.sh").out.strip())["name"] == "mine"
    for line, words in (
        ("#ONES --gpus many", "job.sh:1: Invalid value for '--gpus'"),
        ("#ONES --wings 2", "job.sh:1: No such option: --wings"),
        ("#ONES --wait", "job.sh:1: #ONES: only options of the job are possible here, not 'wait'"),
        ("#ONES --name 'x", "job.sh:1: No closing quotation"),
    ):
        script.write_text(line + "\n")
        assert words in ones("submit", "job.sh").err, line


def test_jobs_are_filtered(served: Inside, ones: Ones) -> None:
    hog = served.submit(gpus=2, name="hog", tags=["big"]).json()["id"]
    late = served.submit(gpus=1, name="late").json()["id"]
    wait_for(lambda: job_of(served, hog)["state"] == "running", "it does not run")
    owner = str(job_of(served, hog)["owner"])
    assert [job["id"] for job in ones("ps", "-s", "waiting", "--json").json] == [late]
    assert [job["id"] for job in ones("queue", "--state", "running,held", "--json").json] == [hog]
    assert [job["id"] for job in ones("status", "--tag", "big", "--json").json] == [hog]
    assert [job["id"] for job in ones("ps", "-u", owner, "-n", "1", "--json").json] == [late]
    assert ones("ps", "-u", "nobody").err == "no jobs match; those that have ended: ones ps --all\n"
    assert "did you mean 'running'?" in ones("ps", "--state", "runing").err
    assert "not together with --watch" in ones("ps", "-w", "--json").err
    assert ones("stop", late).out == f"{late}: cancelled\n"
    ended = [job["id"] for job in ones("ps", "--since", "1h", "--json").json]
    assert ended[:2] == [late, hog]
    assert ones("ps", "--since", "2099-01-01", "-s", "cancelled").err == "no jobs match\n"
    assert "soon" in ones("ps", "--since", "soon").err


def test_a_list_is_watched_until_it_is_interrupted(
    served: Inside, ones: Ones, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[float] = []

    def sleep(seconds: float) -> None:
        turns.append(seconds)
        if len(turns) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("ones.cli.jobs.time.sleep", sleep)
    found = ones("ps", "-w")
    assert (found.code, found.err.count("no jobs"), turns) == (0, 2, [2.0, 2.0])


def test_the_state_directory_has_its_former_option_too(
    ones: Ones, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in [name for name in os.environ if name.startswith("ONES_")]:
        monkeypatch.delenv(variable)
    for option in ("--dir", "--state"):
        found = ones("why", "x", option, tmp_path)
        assert (found.code, found.err) == (
            1,
            "ones: no service is running; start it with: ones up\n",
        )


def test_the_last_lines_of_an_output_are_printed(served: Inside, ones: Ones) -> None:
    command = ["sh", "-c", "seq -f 'line %g' 0 4999; printf rest"]
    job = served.submit(command=command).json()["id"]
    wait_for(lambda: job_of(served, job)["ended_at"] is not None, "it does not end")
    assert ones("logs", job, "-n", "2").out == "line 4999\nrest"
    assert ones("logs", job, "--tail", "4000").out.startswith("line 1001\n")
    assert ones("logs", job, "--tail", "9000").out.startswith("line 0\n")
    (only,) = ones("logs", job, "--tail", "1", "--json").json
    assert only["text"] == "rest"
    assert ones("logs", job, "--since", "1h", "-n", "1").out == "rest"
    assert "ran since then" in ones("logs", job, "--since", "2099-01-01").err


def test_a_drained_node_shows_why(served: Inside, ones: Ones) -> None:
    ones("cluster", "drain", "local", "-r", "new fan")
    assert "drained by" in ones("cluster").out
    (node,) = ones("cluster", "--json").json["nodes"]
    assert node["reason"].endswith(": new fan")
    ones("cluster", "undrain", "local")
    (node,) = ones("cluster", "--json").json["nodes"]
    assert node["reason"] == ""
    ones("cluster", "drain", "local/0", "--reason", "noisy")
    assert ": noisy" in ones("cluster").out
    ones("cluster", "undrain", "local/0")


def test_a_job_says_which_code_it_runs(served: Inside, ones: Ones, tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("#!/bin/bash\n#ONES --snapshot -g 1\ncat text\n")
    (tmp_path / "text").write_text("as submitted")
    (tmp_path / "hosts").symlink_to("/etc/hosts")
    hog = served.submit(gpus=2).json()["id"]
    packed = ones("submit", "job.sh")
    assert f"runs a snapshot of {tmp_path}: 2 files, " in packed.err
    assert "not in the snapshot, because it is outside of the tree or no file: hosts" in packed.err
    job = packed.out.strip()
    (tmp_path / "job.yaml").write_text("command: [cat, text]\nsnapshot: true\ngpus: 1\n")
    in_file = ones("submit", "-F", "job.yaml").out.strip()
    live = ones("submit", "-g", "1", "--", "cat", "text")
    said = f"runs the files in {tmp_path} as they are when it starts"
    assert said in live.err
    (tmp_path / "text").write_text("edited")
    (tmp_path / "job.sh").unlink()
    assert f"snapshot {job_of(served, job)['snapshot']}"[:20] in ones("show", job).out
    assert "files in /" in ones("show", live.out.strip()).out
    snapshots = [job_of(served, name)["snapshot"] for name in (job, in_file, live.out.strip())]
    assert (snapshots[0] == snapshots[1], snapshots[2]) == (False, ""), "job.yaml came in between"
    (tmp_path / "job.yaml").write_text("command: [cat, text]\nsnapshot: maybe\n")
    assert "snapshot: 'maybe' is not true or false" in ones("submit", "-F", "job.yaml").err
    (tmp_path / "big").write_bytes(b"x" * 3_000_000)
    served.service.snapshots.max_mb = 2.0
    refused = ones("submit", "--snapshot", "--", "cat", "text")
    assert (refused.code, refused.out) == (2, "")
    assert "have 3.0 MB; the limit is max_snapshot_mb = 2; the largest: big (3.0 MB)" in refused.err
    ones("cancel", hog)
