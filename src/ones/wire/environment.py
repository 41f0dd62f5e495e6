"""What a training process is told by whoever starts it: a few environment variables.

A launcher writes them (`to_env`), `ones.join` reads them (`from_env`). Without
`ONES_CONTROLLER` a script runs alone, as an ordinary loop. Which device a worker may
use (`CUDA_VISIBLE_DEVICES`) and how many threads is the launcher's to set beside these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from ones.errors import UserError

#: in the directory of a worker (`run_dir`): reports that the controller has not acknowledged, one
#: `Reports` message to a line, written when the worker ends
KEPT_REPORTS = "reports.jsonl"
MOST_KEPT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEnvironment:
    controller: str  # base URL; reports go to {controller}/worker/reports
    token: str = field(repr=False)  # of the job: `Authorization: Bearer ...`
    job: str
    worker: str  # its GPU, as node/index
    plan: int  # of the plan that started this worker
    incarnation: int = 0
    run_dir: str  # of this worker alone
    job_dir: str  # of the job on this node; workers of one node share it
    checkpoints: str  # a path that fsspec understands, shared by all nodes
    host: str = "127.0.0.1"  # address at which other workers reach this one
    #: the controller's own certificate (PEM), to be trusted besides those of the machine
    authority: str = field(default="", repr=False)

    def to_env(self) -> dict[str, str]:
        return {_variable(f.name): str(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> WorkerEnvironment | None:
        """None: the script runs alone."""
        if not env.get("ONES_CONTROLLER"):
            return None
        values: dict[str, str | int] = {}
        for f in fields(cls):
            name = _variable(f.name)
            text = env.get(name)
            if text is None:
                if f.name in ("incarnation", "host", "authority"):
                    continue
                raise UserError(f"{name} is not set, though ONES_CONTROLLER is")
            if f.name in ("plan", "incarnation"):
                if not text.isdecimal():
                    raise UserError(f"{name} {text!r} is not a whole number")
                values[f.name] = int(text)
            else:
                values[f.name] = text
        return cls(**values)  # type: ignore[arg-type]


def _variable(name: str) -> str:
    return f"ONES_{name.upper()}"
