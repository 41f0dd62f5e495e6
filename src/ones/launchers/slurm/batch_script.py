"""The batch script with which sbatch starts a service, or adds nodes to one."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field

from ones.errors import InvalidSettingError

_TIME = re.compile(r"(\d+-)?\d+(:\d+){0,2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchScript:
    nodes: int = 1
    gpus_per_node: int = 0
    slots: int = 1  # CPU slots of each node, without GPUs
    time: str = "1:00:00"
    lead: int = 300  # seconds before the end in which work is saved
    state: str = ""
    command: str = "ones"
    options: tuple[str, ...] = field(default=())  # further #SBATCH options
    controller: bool = True  # start a controller if none runs

    def text(self) -> str:
        """The text of the script.

        >>> print(BatchScript(nodes=2, gpus_per_node=4, state="/home/ann/ones").text())
        #!/bin/bash
        #SBATCH --job-name=ones
        #SBATCH --nodes=2
        #SBATCH --gpus-per-node=4
        #SBATCH --time=1:00:00
        #SBATCH --no-kill
        #SBATCH --signal=B:USR1@300
        #SBATCH --output=ones-%j.log
        # a failed node does not end the others (--no-kill); 300 s before the end work is saved
        exec ones slurm serve --dir /home/ann/ones --lead 300
        <BLANKLINE>
        """
        self._check()
        sbatch = [
            "--job-name=ones",
            f"--nodes={self.nodes}",
            *([f"--gpus-per-node={self.gpus_per_node}"] if self.gpus_per_node else []),
            f"--time={self.time}",
            "--no-kill",
            f"--signal=B:USR1@{self.lead}",
            "--output=ones-%j.log",
            *self.options,
        ]
        serve = [self.command, "slurm", "serve"]
        if self.state:
            serve += ["--dir", self.state]
        if not self.gpus_per_node:
            serve += ["--slots", str(self.slots)]
        serve += ["--lead", str(self.lead)]
        if not self.controller:
            serve.append("--no-controller")
        return "\n".join(
            [
                "#!/bin/bash",
                *(f"#SBATCH {option}" for option in sbatch),
                "# a failed node does not end the others (--no-kill);"
                f" {self.lead} s before the end work is saved",
                # exec, because Slurm sends the signal to the process that sbatch started
                "exec " + shlex.join(serve),
                "",
            ]
        )

    def _check(self) -> None:
        for name, value, least in (
            ("nodes", self.nodes, 1),
            ("gpus-per-node", self.gpus_per_node, 0),
            ("slots", self.slots, 1),
            ("lead", self.lead, 10),
        ):
            if value < least:
                raise InvalidSettingError(f"{name}: {value} is not at least {least}")
        if not _TIME.fullmatch(self.time):
            raise InvalidSettingError(f"time: {self.time!r} is not a time such as 1:00:00 or 2-12")
