"""Workers that run as other Unix users are sampled, too; and what they say is read with care."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from pathlib import Path

from ones.launchers import Launch, LauncherEvent, Sampled
from ones.wire.samples import OWN_STEPS, OwnSteps, SlotSample
from tests.processes import wait_for
from tests.unix_users import Machine

SAYS = json.dumps({"seconds": 0.25, "samples": 32.0})
READ = """
import sys
from ones.exec.processes import usage_of_all
print({usage.pid: usage.memory_bytes for usage in usage_of_all()}[int(sys.argv[1])])
"""


def test_workers_of_unix_users_are_sampled(machine: Machine) -> None:
    root = machine.root / secrets.token_hex(4)
    root.mkdir(mode=0o755)
    launcher = machine.launcher(root)
    launcher.sample_seconds = 0.1
    events: list[LauncherEvent] = []
    launcher.open(events.append)

    def samples() -> list[SlotSample]:
        return [s for e in list(events) if isinstance(e, Sampled) for s in e.samples]

    try:
        launcher.launch(
            Launch(
                id="a~1~n0.0",
                job="a",
                slots=("n0/0",),
                argv=(
                    "sh",
                    "-c",
                    f"echo '{SAYS}' > $ONES_RUN_DIR/{OWN_STEPS}; while :; do :; done",
                ),
                cwd="/",
                env={"PATH": os.environ["PATH"]},
                user=machine.ann.pw_name,
            )
        )
        wait_for(lambda: any(sample.cpus for sample in samples()), "it is idle")
        steps = wait_for(lambda: samples()[-1].own_steps)
        assert steps == OwnSteps(seconds=0.25, samples=32.0)
        pid = launcher.running()["a~1~n0.0"].pid
        # a service that is not root sees as much
        env = {**os.environ, "PYTHONPATH": machine.path}
        read = subprocess.run(
            [*machine.python, "-c", READ, str(pid)], user=machine.bob.pw_uid, env=env, cwd="/",
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert int(read.stdout) > 0
        path = Path(launcher._dirs.directory("a", "n0", "a~1~n0.0")) / OWN_STEPS
        path.unlink()
        path.symlink_to("/etc/shadow")
        count = len(samples())
        wait_for(lambda: len(samples()) > count + 2)
        assert samples()[-1].own_steps is None
    finally:
        launcher.close(kill=True)
    wait_for(lambda: not machine.processes(), "processes of users are left")
