"""Metrics for Prometheus, computed on request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ones.control.service import Service


class _Collector:
    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        service = self._service
        board = service.board
        cards = list(board.cards.values())
        jobs = GaugeMetricFamily("ones_jobs", "Jobs by state.", labels=["state"])
        for state, count in sorted(Counter(card.state for card in cards).items()):
            jobs.add_metric([state], count)
        yield jobs
        slots = service.launcher.slots()
        held = sum(len(card.workers) for card in cards)
        yield GaugeMetricFamily("ones_slots", "Slots of the cluster.", len(slots))
        cordoned = len(service.engine.cordons.gpus)
        yield GaugeMetricFamily("ones_slots_aside", "Slots that are cordoned.", cordoned)
        yield GaugeMetricFamily("ones_slots_held", "Slots with a worker.", held)
        yield CounterMetricFamily("ones_plans", "Plans that were carried out.", board.plan_number)
        for name, text in (
            ("rescales", "Changes of size or batch without a restart."),
            ("preemptions", "Stops of jobs in favour of other jobs."),
            ("losses", "Workers that died."),
        ):
            total = sum(getattr(card, name) for card in cards)
            yield CounterMetricFamily(f"ones_{name}", text, total)
        pauses = sum(card.pause_seconds for card in cards)
        yield CounterMetricFamily("ones_pause_seconds", "Pauses of training by changes.", pauses)
        dropped = CounterMetricFamily(
            "ones_reports_dropped", "Ignored reports: stale, duplicate, unknown.", labels=["cause"]
        )
        for cause, count in sorted(board.dropped.items()):
            dropped.add_metric([cause], count)
        yield dropped
        refused = CounterMetricFamily(
            "ones_reports_refused", "Requests of workers that were refused.", labels=["status"]
        )
        for status, count in sorted(service.refused.items()):
            refused.add_metric([str(status)], count)
        yield refused
        quarantined = service.recorder.quarantined
        yield CounterMetricFamily(
            "ones_quarantined", "Entries of the run log that are skipped.", quarantined
        )
        yield CounterMetricFamily(
            "ones_contained", "Exceptions that failed one job only.", service.engine.live.contained
        )
        recent = sorted(service.engine.decision_seconds)
        if recent:
            yield GaugeMetricFamily(
                "ones_decision_seconds",
                "Time from an event to its actions, median of recent events.",
                recent[len(recent) // 2],
            )
        yield CounterMetricFamily(
            "ones_log_entries", "Entries of the run log.", service.recorder.number
        )
        yield CounterMetricFamily(
            "ones_commits", "Transactions since the start.", service.store.commits
        )


def exposition(service: Service) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Collector(service))
    return generate_latest(registry)
