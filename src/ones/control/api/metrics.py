"""Metrics for Prometheus, computed on request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ones.control.service import Service
from ones.control.utilisation.board import WorkerUse


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
        yield from _used(service)
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


def _used(service: Service) -> Iterator[Metric]:
    """What workers use, by slot: a metric has no names of jobs."""
    uses = sorted(service.utilisation.all_uses().items())
    for name, text, value in _USES:
        metric = GaugeMetricFamily(f"ones_worker_{name}", text, labels=["slot"])
        for slot, use in uses:
            if (found := value(use)) is not None:
                metric.add_metric([slot], found)
        yield metric
    live = [card.id for card in service.board.live() if card.workers]
    idle = sum(len(service.utilisation.idle_slots(job)) for job in live)
    yield GaugeMetricFamily(
        "ones_slots_idle", "Slots with an idle worker (idle_warn_minutes).", idle
    )
    slow = sum(len(service.utilisation.slow_slots(job)) for job in live)
    yield GaugeMetricFamily(
        "ones_slots_slow", "Slots with a slow worker (slow_worker_minutes).", slow
    )


_MB = 1 << 20
_USES: tuple[tuple[str, str, Callable[[WorkerUse], float | None]], ...] = (
    (
        "utilisation_ratio",
        "Part of its GPU, or of its share of the CPUs, that a worker keeps busy.",
        lambda use: use.sample.utilisation,
    ),
    (
        "memory_bytes",
        "Memory in use on its GPU, or by a worker on CPUs.",
        lambda use: None if use.sample.memory_mb is None else use.sample.memory_mb * _MB,
    ),
    ("power_watts", "Power of its GPU.", lambda use: use.sample.power_watts),
    ("cpus", "CPUs that a worker keeps busy.", lambda use: use.sample.cpus),
    (
        "own_step_seconds",
        "Median of a worker's own steps, without waiting for other workers.",
        lambda use: use.sample.own_steps.seconds if use.sample.own_steps else None,
    ),
)


def exposition(service: Service) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Collector(service))
    return generate_latest(registry)
