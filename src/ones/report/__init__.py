"""Run logs and states in, numbers and pictures out. Importing it does not import matplotlib."""

from ones.report.gantt import draw_comparison, draw_gantt
from ones.report.metrics import Metrics, metrics_of
from ones.report.timeline import JobEnd, JobPoint, Segment, Timeline, timeline_of

__all__ = [
    "JobEnd",
    "JobPoint",
    "Metrics",
    "Segment",
    "Timeline",
    "draw_comparison",
    "draw_gantt",
    "metrics_of",
    "timeline_of",
]
