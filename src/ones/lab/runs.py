"""One simulated run, from its description to its row of results and its files.

The keys of a row are documented in docs/reference/results.md. A wrong description raises an error
before the first file is written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

from msgspec import structs

from ones import __version__
from ones.config import half_life_seconds
from ones.core.cluster import Cluster
from ones.core.job import Job, JobId
from ones.core.state import State
from ones.errors import InvalidFileError, InvalidSettingError, UserError, WorldError
from ones.policies import create, located
from ones.report.metrics import fairness_figures, metrics_of
from ones.runlog import (
    VERSION,
    Entry,
    Header,
    LogWriter,
    RunLog,
    SnapshottingLog,
    forget_snapshots,
)
from ones.sim.fair_share import finish_time_fairness
from ones.sim.lengths import epochs_needed, length_of, one_gpu_seconds
from ones.sim.oracle import oracle_of
from ones.sim.perturbed import altered_physics
from ones.sim.run import Simulation, Simulator
from ones.sim.stragglers import Stragglers
from ones.workload import (
    Trace,
    gap_for_load,
    generate,
    generate_artifact,
    load_workload,
    stretched,
)
from ones.workload.summary import load_of
from ones.workload.variations import JobShares, varied, without_kind

LOG_NAME = "run.jsonl"
RESULT_NAME = "result.json"
PICTURE_NAME = "schedule.png"

#: generated workloads, and their sets of numbers
GENERATED = {"paper": "paper", "paper-calibrated": "calibrated", "paper-artifact": "artifact"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """Everything that a run depends on."""

    policy: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    workload: str = "paper"  # or another of GENERATED, or the path of a trace
    gpus: int = 64
    gpus_per_node: int = 4
    nodes_per_rack: int = 0  # 0: no racks
    jobs: int | None = 50  # None: all jobs of a file
    gap: float = 12.0
    load: float | None = None  # instead of a gap
    scatter: float = 0.3
    requests: str | None = None  # mix of requested GPUs; None: the one of each kind
    hide_kinds: bool = False  # no job has a kind
    own_kinds: bool = False  # every job is a kind of its own
    left_out: str = ""  # kind that is left out
    shares: JobShares = field(default_factory=JobShares)  # of jobs that are made harder
    physics: Mapping[str, float] = field(default_factory=dict)  # changes of simulator numbers
    start_up: float | None = None  # seconds until workers train; None: as the numbers say
    seed: int = 0
    mechanism: str = "native"
    fair_share_half_life_hours: float = 0.0  # 0: past use does not count

    @property
    def kinds(self) -> str:
        """What policies see of the kinds of jobs, in a word."""
        return "hidden" if self.hide_kinds else "own" if self.own_kinds else "given"

    def __post_init__(self) -> None:
        if self.hide_kinds and self.own_kinds:
            raise InvalidSettingError("--hide-kinds and --own-kinds exclude each other")


def trace_of(spec: RunSpec) -> Trace:
    return _loaded(spec)[0]


def _loaded(spec: RunSpec) -> tuple[Trace, int]:
    """The trace, generated or from a file, and the number of jobs that could not be used."""
    left_out = 0
    if spec.workload in GENERATED:
        trace = _generated(spec)
        if spec.left_out:
            trace = without_kind(trace, spec.left_out)
        if spec.load is not None and len(trace.jobs) > 1:
            trace = at_load(trace, spec.load, spec.gpus)  # exact, whatever was drawn
    else:
        path = Path(spec.workload)
        loaded = load_workload(path, length_of, jobs=spec.jobs, seed=spec.seed)
        trace, left_out = loaded.trace, loaded.left_out
        if spec.left_out:
            trace = without_kind(trace, spec.left_out)
        if spec.load is not None:
            trace = at_load(trace, spec.load, spec.gpus)
    trace = varied(trace, spec.shares, spec.seed, epochs_needed)
    if spec.hide_kinds:
        trace = without_kinds(trace)
    elif spec.own_kinds:
        trace = with_own_kinds(trace)
    return trace, left_out


def _generated(spec: RunSpec) -> Trace:
    jobs, numbers = 50 if spec.jobs is None else spec.jobs, GENERATED[spec.workload]
    if numbers == "artifact":
        if spec.requests is not None:
            raise InvalidSettingError(
                f"requests: {spec.workload} has the requested GPUs of the authors' trace"
            )
        return generate_artifact(jobs=jobs, seed=spec.seed)
    gap = spec.gap if spec.load is None else gap_for_load(spec.load, spec.gpus, numbers)
    return generate(
        jobs=jobs,
        seed=spec.seed,
        gap=gap,
        scatter=spec.scatter,
        requests=spec.requests,
        numbers=numbers,
    )


def at_load(trace: Trace, load: float, gpus: int) -> Trace:
    """The same jobs with all gaps stretched by one factor, which keeps burstiness."""
    if not 0 < load < inf:
        raise InvalidSettingError(f"load: {load} is not a number above 0")
    present = load_of(trace, gpus, one_gpu_seconds)
    if present is None:
        raise UserError(f"{trace.name}: all jobs arrive at once: no load can be given")
    return stretched(trace, present / load)


def without_kinds(trace: Trace) -> Trace:
    """Hides the kinds of jobs: a policy sees that none is given."""
    return _relabelled(trace, lambda job: "")


def with_own_kinds(trace: Trace) -> Trace:
    """Makes every job a kind of its own: a policy sees kinds, and none of them repeats."""
    return _relabelled(trace, lambda job: job.id)


def _relabelled(trace: Trace, kind_of: Callable[[Job], str]) -> Trace:
    jobs = [replace(e, job=structs.replace(e.job, kind=kind_of(e.job))) for e in trace.jobs]
    return Trace.of(trace.name, jobs, trace.incidents)


class Run:
    """A prepared run; it writes no file before it is carried out, once."""

    def __init__(self, spec: RunSpec, trace: Trace | None = None) -> None:
        self.spec = spec
        self.trace, self.left_out = _loaded(spec) if trace is None else (trace, 0)
        self.cluster = Cluster.of(spec.gpus, spec.gpus_per_node, nodes_per_rack=spec.nodes_per_rack)
        self._physics = physics = altered_physics(spec.physics, self.trace, spec.start_up)
        truth = oracle_of(
            self.trace, seed=spec.seed, gpus_per_node=spec.gpus_per_node, physics=physics
        )
        policy = create(spec.policy, seed=spec.seed, oracle=truth, **spec.settings)
        self._simulator = Simulator(
            self.trace,
            self.cluster,
            policy,
            mechanism=spec.mechanism,
            seed=spec.seed,
            physics=physics,
            stragglers=Stragglers(spec.physics.get("stragglers", 1.0), spec.seed),
            half_life=half_life_seconds(spec.fair_share_half_life_hours),
        )
        self.mechanism = self._simulator.mechanism

    def header(self) -> Header:
        scheduler = self._simulator.scheduler
        return Header(
            version=VERSION,
            software=__version__,
            policy=located(self.spec.policy),
            seed=self.spec.seed,
            settings=dict(self.spec.settings),
            nodes=tuple(self._simulator.cluster.nodes.values()),
            switch_cost=scheduler.state.switch_cost,
            workload=self.spec.workload,
            mechanism=self.mechanism,
        )

    def carry_out(
        self,
        record: Callable[[Entry], None] = lambda entry: None,
        progress: Callable[[State], None] | None = None,
    ) -> dict[str, Any]:
        """Runs the simulation and returns its row."""
        return self.row(self.simulate(record, progress))

    def simulate(
        self,
        record: Callable[[Entry], None] = lambda entry: None,
        progress: Callable[[State], None] | None = None,
    ) -> Simulation:
        """Runs the simulation."""
        return self._simulator.run(record, progress)

    def carry_out_into(
        self,
        directory: Path,
        *,
        snapshots: bool = False,
        progress: Callable[[State], None] | None = None,
    ) -> dict[str, Any]:
        """Runs the simulation and writes log and row into the directory."""
        with LogWriter(directory / LOG_NAME, self.header()) as log:
            record = SnapshottingLog(log, self._simulator.scheduler) if snapshots else log
            row = self.carry_out(record, progress)
        (directory / RESULT_NAME).write_text(json.dumps(row, indent=2) + "\n")
        return row

    def fairness(self, result: Simulation) -> dict[JobId, float]:
        """Finish-time fairness ρ of every completed job."""
        return finish_time_fairness(result.state, self.trace, self.spec.gpus, self._physics)

    def row(self, result: Simulation) -> dict[str, Any]:
        spec = self.spec
        return {
            "policy": spec.policy,
            "workload": spec.workload,
            "gpus": spec.gpus,
            "jobs": len(self.trace.jobs),
            "seed": spec.seed,
            "mechanism": self.mechanism,
            **asdict(metrics_of(result.state)),
            **fairness_figures(list(self.fairness(result).values())),
            "wall_seconds": round(result.wall_seconds, 3),
            "policy_cpu_seconds": round(result.policy_cpu_seconds, 3),
            "events": result.events,
            "dropped": dict(result.state.dropped),
        }


def fresh_directory(path: Path, *, overwrite: bool = False) -> Path:
    """Creates a directory for the files of a run; refuses one that holds a run."""
    taken = [name for name in (LOG_NAME, RESULT_NAME, PICTURE_NAME) if (path / name).exists()]
    if taken and not overwrite:
        raise UserError(
            f"{path}: holds {taken[0]} of an earlier run; name another directory, or --overwrite"
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as problem:
        raise InvalidFileError(path, "is a file, not a directory") from problem
    except OSError as problem:
        raise WorldError(f"{path}: cannot be created: {problem.strerror}") from problem
    for name in taken:
        (path / name).unlink()
    forget_snapshots(path / LOG_NAME)
    return path


def draw_run(directory: Path, title: str) -> Path | None:
    """Draws the log of a run; None if matplotlib is not installed."""
    try:
        from ones.report import draw_gantt, timeline_of
    except ImportError:
        return None
    log = RunLog(directory / LOG_NAME)
    path = directory / PICTURE_NAME
    try:
        draw_gantt(timeline_of(log.header.cluster, log), path, title=title)
    except ImportError:
        return None
    return path
