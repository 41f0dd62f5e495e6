"""Jobs that were submitted before ones-launchd was installed."""

from __future__ import annotations

import secrets

from tests.control.world import World
from tests.unix_users import Machine


def test_a_job_from_before_runs_as_the_present_unix_user_of_its_owner(machine: Machine) -> None:
    root = machine.root / secrets.token_hex(4)
    root.mkdir(mode=0o755)
    world = World(root, launchd="none", slots=1, trusting=True)
    world.python = machine.python[0]
    world.up()
    me = world.get("/api/me")["name"]
    first = world.run(["sleep", "1000"])
    early, late = world.run(["id", "-un"]), world.run(["id", "-un"])
    for job in (early, late):
        world.post(f"/api/jobs/{job}/hold")
    world.post(f"/api/jobs/{first}/cancel")
    world.wait_end(first)
    world.post("/api/shutdown", status=202)
    assert world.process is not None
    world.process.wait()
    world.http.close()

    world.settings |= {"launchd": str(machine.socket), "trusting": False}
    world.up()
    try:
        world.post(f"/api/jobs/{early}/release")
        failed = world.wait_end(early)
        assert failed["state"] == "failed"
        assert "has no unix user; an admin can set it with: ones user unix" in failed["message"]
        unix = machine.ann.pw_name
        world.http.put(f"/api/users/{me}/unix", json={"unix": unix}).raise_for_status()
        world.post(f"/api/jobs/{late}/release")
        assert world.wait_end(late)["state"] == "finished"
        assert world.output(late) == f"{unix}\n"
    finally:
        world.down()
