"""What arrives: traces read and generated, and the numbers behind the paper's jobs."""

from ones.workload.csv_trace import COLUMNS, read_trace, write_trace
from ones.workload.generate import gap_for_load, generate, mean_one_gpu_seconds
from ones.workload.kinds import Kind, Numbers, paper_numbers
from ones.workload.trace import Incident, Trace, TraceJob, Training, check_fits

__all__ = [
    "COLUMNS",
    "Incident",
    "Kind",
    "Numbers",
    "Trace",
    "TraceJob",
    "Training",
    "check_fits",
    "gap_for_load",
    "generate",
    "mean_one_gpu_seconds",
    "paper_numbers",
    "read_trace",
    "write_trace",
]
