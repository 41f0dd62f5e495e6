"""Metrics and charts of runs, from logs and states. matplotlib is imported when drawing only."""

from ones.report.gantt import draw_comparison, draw_gantt
from ones.report.metrics import Metrics, metrics_of
from ones.report.timeline import JobEnd, RunTimeline, WorkerSegment, timeline_of

__all__ = [
    "JobEnd",
    "Metrics",
    "RunTimeline",
    "WorkerSegment",
    "draw_comparison",
    "draw_gantt",
    "metrics_of",
    "timeline_of",
]
