"""The environment variables of a training process.

A launcher writes them (`to_env`), `ones.join` reads them (`from_env`). Without `ONES_CONTROLLER` a
script runs alone, as an ordinary loop. The launcher also sets the worker's device
(`CUDA_VISIBLE_DEVICES`) and its number of threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from ones.errors import UserError

#: file in a worker's directory (`run_dir`) with reports that the controller has not acknowledged,
#: one `Reports` message per line; written when the worker ends
KEPT_REPORTS = "reports.jsonl"
MOST_KEPT_BYTES = 1 << 20
#: variable with the path of the job's checkpoints (`checkpoints` below)
CHECKPOINTS = "ONES_CHECKPOINTS"
#: the controller's URL in a fixed-size job: its script may report progress but cannot join
PROGRESS = "ONES_PROGRESS"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEnvironment:
    controller: str  # base URL; reports go to {controller}/worker/reports
    token: str = field(repr=False)  # of the job: `Authorization: Bearer ...`
    job: str
    worker: str  # its GPU, as node/index
    plan: int  # number of the plan that started this worker
    incarnation: int = 0
    run_dir: str  # directory of this worker
    job_dir: str  # directory of the job on this node, shared by the job's workers there
    checkpoints: str  # a path that fsspec understands, shared by all nodes
    host: str = "127.0.0.1"  # address at which other workers reach this one
    #: the controller's own certificate (PEM), to be trusted besides those of the machine
    authority: str = field(default="", repr=False)
    steps_done: int = 0  # that the job had reported when this worker was launched

    def to_env(self) -> dict[str, str]:
        return {_variable(f.name): str(getattr(self, f.name)) for f in fields(self)}

    def to_progress_env(self) -> dict[str, str]:
        """The variables of a fixed-size job: `ones.join` runs alone, `ones.progress` reports."""
        variables = self.to_env()
        variables[PROGRESS] = variables.pop("ONES_CONTROLLER")
        return variables

    @classmethod
    def of_progress(cls, env: Mapping[str, str]) -> WorkerEnvironment | None:
        """The values of the variables in a fixed-size job; None in any other process."""
        return cls.from_env({**env, "ONES_CONTROLLER": env.get(PROGRESS, "")})

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> WorkerEnvironment | None:
        """The values of the variables; None if the script runs alone."""
        if not env.get("ONES_CONTROLLER"):
            return None
        values: dict[str, str | int] = {}
        for f in fields(cls):
            name = _variable(f.name)
            text = env.get(name)
            if text is None:
                if f.name in ("incarnation", "host", "authority", "steps_done"):
                    continue
                raise UserError(
                    f"{name} is not set, but ONES_CONTROLLER is; unset it to run the script alone"
                )
            if f.name in ("plan", "incarnation", "steps_done"):
                if not text.isdecimal():
                    raise UserError(f"{name} {text!r} is not a whole number")
                values[f.name] = int(text)
            else:
                values[f.name] = text
        return cls(**values)  # type: ignore[arg-type]


def _variable(name: str) -> str:
    return f"ONES_{name.upper()}"
