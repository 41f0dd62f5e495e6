"""`python -m ones.exec RUN_DIR`: detaches from its parent, takes the lock, and serves requests.

With `--service=UID` it was started by ones-launchd for another user than the service's: it is
detached already, and that user may send requests. With `--output-mb=N` it keeps the output of the
job on this node below that size, which the service cannot do with files of another user.
Prints `ready` once it can be reached, or `busy` if another ones-exec holds the lock.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from ones.exec.cleanup import clean_up
from ones.exec.files import try_lock
from ones.exec.line_protocol import listen
from ones.exec.logs import log_to_stderr
from ones.exec.processes import PR_SET_CHILD_SUBREAPER, PR_SET_NAME, prctl
from ones.exec.run_dir import LOCK, LOG
from ones.exec.supervisor import IDLE_SECONDS, Supervisor

USAGE = (
    "usage: python -m ones.exec RUN_DIR [IDLE_SECONDS [LEASE_FILE]] [--output-mb=N] [--service=UID]"
)
_SERVICE, _OUTPUT = "--service=", "--output-mb="


def main(argv: list[str]) -> int:
    service, output_mb = _taken(argv, _SERVICE), _taken(argv, _OUTPUT)
    if len(argv) not in (2, 3, 4):
        print(USAGE, file=sys.stderr)
        return 2
    run_dir = Path(argv[1]).absolute()
    run_dir.mkdir(mode=0o700 if service is None else 0o750, parents=True, exist_ok=True)
    if service is None:
        _detach()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_NAME, b"ones-exec")
    lock = os.open(run_dir / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not try_lock(lock):
        print("busy", flush=True)
        return 0
    os.ftruncate(lock, 0)
    os.write(lock, f"{os.getpid()}\n".encode())
    clean_up(run_dir)
    listener = listen(run_dir)
    print("ready", flush=True)
    _redirect_output(run_dir)
    log_to_stderr()  # which is exec.log now
    try:
        lease = Path(argv[3]) if len(argv) > 3 else None
        idle = float(argv[2]) if len(argv) > 2 else IDLE_SECONDS
        Supervisor(run_dir, listener, idle, lease, service, output_mb).run()
    except BaseException:
        logging.getLogger("ones.exec").exception("ones-exec failed")
        raise
    return 0


def _taken(argv: list[str], option: str) -> int | None:
    """The number of an option at the end, which is taken from the arguments."""
    if argv[-1].startswith(option) and argv[-1].removeprefix(option).isdecimal():
        return int(argv.pop().removeprefix(option))
    return None


def _detach() -> None:
    """Fork twice: the starter is not the parent, and there is no controlling terminal."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)


def _redirect_output(run_dir: Path) -> None:
    os.chdir("/")
    devnull = os.open(os.devnull, os.O_RDONLY)
    log = os.open(run_dir / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
    sys.stdout.flush()
    for source, target in ((devnull, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(devnull)
    os.close(log)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
