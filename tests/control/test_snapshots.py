"""Snapshots: uploads, the jobs that use them, and their end."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ones.control.snapshots import Snapshots
from ones.errors import InvalidSettingError
from tests.control.inside import Inside, inside
from tests.control.world import World
from tests.exec.test_snapshot import archive_of

NOTHING = "0" * 64


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    with inside(tmp_path_factory.mktemp("snapshots"), slots=1, max_snapshot_mb=1.0) as found:
        yield found


def put(service: Inside, data: bytes, digest: str, **more: object) -> tuple[int, str]:
    query = {"offset": 0, "total": len(data), **more}
    path = f"/api/snapshots/{digest}"
    answer = service.http.put(path, params=query, content=data)  # type: ignore[arg-type]
    return answer.status_code, str(answer.json().get("error", answer.json().get("complete")))


def test_an_archive_is_uploaded_in_parts(service: Inside) -> None:
    data, digest = archive_of("a", "b")
    total = len(data)
    assert service.http.get(f"/api/snapshots/{digest}").json()["complete"] is False
    assert put(service, data[:50], digest, total=total) == (200, "False")
    assert put(service, data[50:], digest, offset=50, total=total) == (200, "True")
    assert put(service, b"", digest, total=total) == (200, "True"), "it is known"
    assert service.http.get(f"/api/snapshots/{digest}").json()["complete"] is True
    eve = service.add_user("eve")
    assert service.http.get(f"/api/snapshots/{digest}", headers=eve).json()["complete"] is False
    refused = service.submit(eve, snapshot={"digest": digest, "root": "/"})
    assert (refused.status_code, "is not here" in refused.json()["error"]) == (422, True)


@pytest.mark.parametrize(
    ("digest", "more", "status", "words"),
    [
        ("xyz", {}, 422, "snapshot: 'xyz' is not a SHA-256 in hex digits"),
        ("..%2f..", {}, 404, "Not Found"),
        (NOTHING, {}, 422, "snapshot: the archive has the digest"),
        (NOTHING, {"total": 1}, 422, "bytes exceed 1"),
        (NOTHING, {"total": 1_000_001}, 422, "the limit is max_snapshot_mb = 1"),
        (NOTHING, {"offset": -1}, 422, "offset"),
    ],
)
def test_a_wrong_upload_is_refused(
    service: Inside, digest: str, more: dict[str, int], status: int, words: str
) -> None:
    found = put(service, archive_of("a")[0], digest, **more)
    assert (found[0], words in found[1]) == (status, True), found


def test_an_archive_that_leads_out_of_its_directory_is_refused(service: Inside) -> None:
    data, digest = archive_of("../x")
    assert put(service, data, digest)[0] == 422
    assert put(service, data, digest)[0] == 422, "nothing of it was kept"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"snapshot": {"digest": NOTHING, "root": "/"}}, "it was removed with the files"),
        ({"snapshot": {"digest": "zz", "root": "/"}}, "snapshot.digest"),
        ({"snapshot": {"digest": NOTHING, "root": "/a"}, "cwd": "/b"}, "is not below the root"),
        ({"snapshot": {"digest": NOTHING, "root": "/a"}, "cwd": "/a/../b"}, "it has no .."),
    ],
)
def test_a_job_with_a_wrong_snapshot_is_refused(
    service: Inside, more: dict[str, Any], words: str
) -> None:
    refused = service.submit(**more)
    assert (refused.status_code, words in refused.json()["error"]) == (422, True), refused.text


def test_only_a_job_with_a_snapshot_gets_one(service: Inside) -> None:
    job = service.submit().json()["id"]
    for token, status in (("", 401), ("wrong", 401), (service.service.tokens.of(job), 409)):
        answer = service.bare.get("/worker/snapshot", headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == status
    assert service.http.get("/worker/snapshot").status_code == 401, "not for users"


def test_archives_go_with_the_files_of_their_jobs(tmp_path: Path) -> None:
    kept = Snapshots(tmp_path, 1.0)
    digests = []
    for name in ("used", "ended", "unknown", "new"):
        data, digest = archive_of(name)
        assert kept.write("ann", digest, data, 0, len(data))
        digests.append(digest)
    used, ended, unknown, new = digests
    assert not kept.write("ann", NOTHING, b"half", 0, 9)
    kept.use("ann", used, "job-1")
    kept.use("ann", used, "job-2")
    kept.use("ann", ended, "job-2")
    kept.use("ann", unknown, "job-9")
    for path in tmp_path.glob("*/*"):
        if new not in path.name:
            os.utime(path, (0.0, 0.0))
    removed = kept.prune({"job-1": True, "job-2": False})
    assert sorted(removed) == sorted([ended, unknown, NOTHING])
    assert kept.has("ann", used)
    assert kept.has("ann", new)
    with pytest.raises(InvalidSettingError, match="it was removed with the files of its jobs"):
        kept.use("ann", ended, "job-3")
    assert not list(tmp_path.glob(f"*/{ended}*"))


def test_later_edits_do_not_change_a_waiting_job(world: World, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "run.sh").write_text('cat text; echo "$1 of $ONES_SUBMIT_DIR"; touch made\n')
    (tree / "text").write_text("as submitted\n")
    hog = world.run(["sleep", "1000"], gpus=4)
    uploaded = world.upload(["sh", f"{tree}/run.sh"], tree)
    body = {**uploaded.changes, "gpus": 1, "name": "job"}
    body["command"].append("{index}")
    tasks = world.post("/api/jobs", {**body, "array": "0-1"}, 201)["tasks"]
    (tree / "text").write_text("edited\n")
    (tree / "run.sh").unlink()
    world.restart()
    world.post(f"/api/jobs/{hog}/cancel")
    for index, job in enumerate(tasks):
        assert world.wait_end(job)["state"] == "finished", world.evidence(job)
        assert world.output(job) == f"as submitted\n{index} of {tree}\n"
    again = world.post(f"/api/jobs/{tasks[0]}/rerun", status=201)["id"]
    world.wait_end(again)
    assert world.output(again) == f"as submitted\n0 of {tree}\n"
    card = world.job(again)
    assert (card["snapshot"], card["root"]) == (uploaded.tree.digest, str(tree))
    assert card["cwd"] == str(tree)
    (archive,) = world.dir.snapshots.glob("*/*.tar.gz")
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == uploaded.tree.digest
    assert sorted(path.name for path in tree.iterdir()) == ["text"], "jobs run elsewhere"
