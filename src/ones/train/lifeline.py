"""Die with somebody who is not one's parent.

A worker's parent is the zygote, and PR_SET_PDEATHSIG would tie it to that. It shall die with
ones-exec instead, and outlive a zygote that dies by itself. So ones-exec holds one end of a
pipe; a worker opens the other end and asks the kernel for SIGKILL when anything happens to it.
Nobody ever writes there, so the only thing that can happen is that ones-exec is gone. No thread
and no Python is needed for it: a worker that hangs in a library dies all the same.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal


def hold(lifeline: int) -> int:
    """For this process alone: a descriptor to keep open."""
    # signals belong to an open file, not to a descriptor: every worker needs its own
    mine = os.open(f"/proc/self/fd/{lifeline}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.fcntl(mine, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(mine, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(mine, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
    poll = select.poll()
    poll.register(mine, select.POLLIN)
    if poll.poll(0):  # it happened before anybody was asked
        os.kill(os.getpid(), signal.SIGKILL)
    return mine
