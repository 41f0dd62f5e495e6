"""The script of the acceptance run with a fault in the training library: PLANTED names it."""

from __future__ import annotations

import os

from ones.train.acceptance import script
from ones.train.emulation.strict_group import EmulatedWork
from ones.train.process_group import ProcessGroup

if os.environ["PLANTED"] == "wait":  # no kernel waits for a reduction
    EmulatedWork.wait = lambda self, *_: None  # type: ignore[method-assign]
elif os.environ["PLANTED"] == "drain":  # the host does not wait at the end of a group
    ProcessGroup.drain = lambda self: None  # type: ignore[method-assign]
elif os.environ["PLANTED"] == "check":  # what an aborted reduction leaves is used
    ProcessGroup.check = lambda self: None  # type: ignore[method-assign]

script.main()
