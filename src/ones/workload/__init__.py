"""Workloads: traces read and generated, and the numbers of the paper's jobs."""

from ones.workload.csv_trace import COLUMNS, read_trace, write_trace
from ones.workload.files import LoadedWorkload, load_workload
from ones.workload.generate import gap_for_load, generate, mean_one_gpu_seconds
from ones.workload.kinds import Kind, Numbers, paper_numbers
from ones.workload.observed import stretched
from ones.workload.trace import (
    Incident,
    RecordedTraining,
    Trace,
    TraceJob,
    Training,
    check_fits,
)

__all__ = [
    "COLUMNS",
    "Incident",
    "Kind",
    "LoadedWorkload",
    "Numbers",
    "RecordedTraining",
    "Trace",
    "TraceJob",
    "Training",
    "check_fits",
    "gap_for_load",
    "generate",
    "load_workload",
    "mean_one_gpu_seconds",
    "paper_numbers",
    "read_trace",
    "stretched",
    "write_trace",
]
