"""The service with emulated workers: the process that serves, and the session that drives it.

`python -m ones.lab.bench.emulation.service STATE SLOTS POLICY [GPUS_PER_NODE]` serves until
SIGTERM. Its last line of output holds the seconds of all decisions.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ones.lab.bench.emulation.launcher import PipeLauncher
from ones.lab.bench.emulation.workers import EmulatedWorkers
from ones.lab.bench.live_service import wait_for
from ones.lab.service_client import Connect, OpenClient

STOP_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class EmulatedService:
    pid: int
    client: OpenClient
    workers: EmulatedWorkers


@asynccontextmanager
async def emulated_service(
    connect: Connect,
    home: Path,
    *,
    slots: int,
    policy: str,
    per_node: int | None = None,
    make_workers: Callable[[str], EmulatedWorkers] = EmulatedWorkers,
) -> AsyncIterator[EmulatedService]:
    """Starts the service; `make_workers` takes its address. Decisions are known at the end."""
    from ones.control.statedir import StateDir

    home.mkdir(parents=True, exist_ok=True)
    arguments = [str(home), str(slots), policy, *([] if per_node is None else [str(per_node)])]
    process = subprocess.Popen(
        [sys.executable, "-m", "ones.lab.bench.emulation.service", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=dict(os.environ),
    )
    directory = StateDir(home)
    try:
        await asyncio.to_thread(
            wait_for,
            lambda: (known := directory.address()) is not None and known.pid == process.pid,
            "the service",
        )
        address = directory.address()
        assert address is not None
        client = connect(address.url, directory.read_token() or "")
        workers = make_workers(address.url)
        reading = asyncio.create_task(workers.follow(process))
        try:
            yield EmulatedService(process.pid, client, workers)
        finally:
            await workers.close()
            await asyncio.to_thread(client.close)
            process.terminate()
            with suppress(TimeoutError):
                await asyncio.wait_for(reading, STOP_SECONDS)
    finally:
        process.terminate()
        await asyncio.to_thread(process.communicate, timeout=STOP_SECONDS)


def main() -> None:
    import uvicorn

    from ones.control.api import WorkerApi, create_app
    from ones.control.controller import Options
    from ones.control.page import add_page
    from ones.control.server import allow_many_files
    from ones.control.service import Service
    from ones.control.statedir import Address, StateDir

    state, slots, policy, *per_node = sys.argv[1:]
    allow_many_files()
    directory = StateDir(Path(state))
    launcher = PipeLauncher(int(slots), *map(int, per_node))
    service = Service(directory, launcher, Options(policy=policy))
    app = create_app(service)
    add_page(app)
    # asyncio sends small answers at once only if the socket names TCP as its protocol
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(2048)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = uvicorn.Server(
        uvicorn.Config(
            WorkerApi(app, service), log_level="critical", access_log=False, lifespan="off",
            timeout_keep_alive=60, timeout_graceful_shutdown=1,
        )
    )  # fmt: skip
    service.start(url)
    service.first_admin()
    directory.write_address(Address(pid=os.getpid(), url=url))
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # uvicorn raises it once more
    server.run(sockets=[listener])
    service.closing = True
    service.stop()
    with suppress(BrokenPipeError):  # the reader may be gone
        print(json.dumps({"decisions": list(service.engine.decision_seconds)}), flush=True)


if __name__ == "__main__":
    main()
