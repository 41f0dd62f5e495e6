"""Workloads: traces read and generated, and the numbers of the paper's jobs."""

from ones.workload.artifact import generate_artifact, read_artifact_trace
from ones.workload.csv_columns import COLUMNS
from ones.workload.csv_trace import read_trace, write_trace
from ones.workload.files import LoadedWorkload, load_workload
from ones.workload.generate import gap_for_load, generate, mean_one_gpu_seconds
from ones.workload.kinds import Kind, Numbers, numbers_of, paper_numbers
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
    "generate_artifact",
    "load_workload",
    "mean_one_gpu_seconds",
    "numbers_of",
    "paper_numbers",
    "read_artifact_trace",
    "read_trace",
    "stretched",
    "write_trace",
]
