"""Gantt charts: whole files or none, shapes that cover the timeline, words that fit."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from ones.core.cluster import Cluster, NodeId
from ones.core.events import NodeDown, NodeUp
from ones.core.job import JobId
from ones.errors import InvalidSettingError, WorldError
from ones.policies import create
from ones.report import RunTimeline, draw_comparison, draw_gantt, timeline_of
from ones.report.blocks import gpu_blocks, node_blocks
from ones.report.colours import job_colours
from ones.report.labels import Scale, place
from ones.report.time_axis import TimeAxis
from ones.runlog import Entry
from ones.sim.run import Simulator
from ones.workload import Trace, generate

PNG = b"\x89PNG\r\n\x1a\n"


def _timeline(policy: str, gpus: int = 16, jobs: int = 15) -> RunTimeline:
    cluster = Cluster.of(gpus)
    trace = Trace.of(
        "with a failure",
        generate(jobs=jobs, seed=5, gap=10).jobs,
        [NodeDown(80.0, NodeId("n1")), NodeUp(160.0, NodeId("n1"), 4)],
    )
    entries: list[Entry] = []
    Simulator(trace, cluster, create(policy), mechanism="elastic").run(entries.append)
    return timeline_of(cluster, entries)


@pytest.fixture(scope="module")
def fifo() -> RunTimeline:
    return _timeline("fifo")


@pytest.fixture(scope="module")
def equi() -> RunTimeline:
    return _timeline("equi")


def test_a_chart_is_written_as_png_and_as_svg(equi: RunTimeline, tmp_path: Path) -> None:
    draw_gantt(equi, tmp_path / "chart.png", title="equi")
    draw_gantt(equi, tmp_path / "chart.svg", title="equi")
    assert (tmp_path / "chart.png").read_bytes().startswith(PNG)
    assert "<svg" in (tmp_path / "chart.svg").read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["chart.png", "chart.svg"]


def test_runs_are_compared_in_one_picture(
    fifo: RunTimeline, equi: RunTimeline, tmp_path: Path
) -> None:
    draw_comparison([("fifo", fifo), ("equi", equi)], tmp_path / "both.png")
    assert (tmp_path / "both.png").read_bytes().startswith(PNG)
    with pytest.raises(ValueError, match="no run"):
        draw_comparison([], tmp_path / "none.png")


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_same_run_gives_the_same_bytes(fifo: RunTimeline, tmp_path: Path, suffix: str) -> None:
    one, other = tmp_path / f"one.{suffix}", tmp_path / f"other.{suffix}"
    draw_gantt(fifo, one)
    draw_gantt(fifo, other)
    assert one.read_bytes() == other.read_bytes()


def test_an_empty_run_can_be_drawn(tmp_path: Path) -> None:
    draw_gantt(timeline_of(Cluster.of(4), []), tmp_path / "empty.png")
    assert (tmp_path / "empty.png").exists()


def test_a_large_cluster_is_drawn_by_node(tmp_path: Path) -> None:
    draw_gantt(_timeline("fifo", gpus=320, jobs=8), tmp_path / "large.svg")
    assert "share of GPUs" in (tmp_path / "large.svg").read_text()  # in a comment beside the paths


def test_an_interrupted_draw_leaves_nothing(
    fifo: RunTimeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Path, target: Path) -> Path:
        assert self.exists()
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        draw_gantt(fifo, tmp_path / "chart.png")
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_keeps_the_chart_that_was_there(
    fifo: RunTimeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    chart = tmp_path / "chart.png"
    chart.write_text("the old one")

    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Figure, "savefig", interrupted)
    with pytest.raises(KeyboardInterrupt):
        draw_gantt(fifo, chart)
    assert chart.read_text() == "the old one"
    assert list(tmp_path.iterdir()) == [chart]


def test_what_cannot_be_written_is_refused_by_name(fifo: RunTimeline, tmp_path: Path) -> None:
    with pytest.raises(InvalidSettingError, match=r"chart\.pdf"):
        draw_gantt(fifo, tmp_path / "chart.pdf")
    with pytest.raises(WorldError, match="missing"):
        draw_gantt(fifo, tmp_path / "missing" / "chart.png")


def test_importing_the_room_does_not_import_matplotlib() -> None:
    code = "import sys, ones.report; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_blocks_cover_what_segments_cover(equi: RunTimeline) -> None:
    busy = sum(segment.end - segment.start for segment in equi.segments)
    by_gpu = sum((b.end - b.start) * (b.bottom - b.top) for b in gpu_blocks(equi))
    assert by_gpu == pytest.approx(busy)
    # a row of a node is its four GPUs
    by_node = sum((b.end - b.start) * (b.bottom - b.top) * 4 for b in node_blocks(equi))
    assert by_node == pytest.approx(busy)


def test_neighbours_with_the_same_times_are_one_block(fifo: RunTimeline) -> None:
    blocks = gpu_blocks(fifo)
    assert len(blocks) < len(fifo.segments)
    for one, other in combinations(blocks, 2):
        same = (one.job, one.start, one.end, one.phase) == (
            other.job,
            other.start,
            other.end,
            other.phase,
        )
        assert not (same and (one.bottom == other.top or other.bottom == one.top))


def test_words_stay_within_blocks_of_their_job(equi: RunTimeline) -> None:
    blocks = gpu_blocks(equi)
    labels = place(blocks, Scale(second=1000 / equi.end, row=30.0))
    assert {label.text.split(" ")[0] for label in labels if label.strong} == set(equi.submissions)
    for label in labels:
        under = [b for b in blocks if b.start <= label.x <= b.end and b.top <= label.y <= b.bottom]
        if label.strong:
            assert label.text.split(" ")[0] in {b.job for b in under}
        else:
            assert any(label.text in (b.text, f"{b.job} · {b.text}") for b in under)


def test_where_nothing_fits_nothing_is_written(equi: RunTimeline) -> None:
    assert place(gpu_blocks(equi), Scale(second=1000 / equi.end, row=0.2)) == []


def test_a_hundred_jobs_have_a_hundred_colours() -> None:
    jobs = [JobId(f"j{i}") for i in range(100)]
    colours = job_colours(jobs)
    assert colours == job_colours(jobs)
    assert len(set(colours.values())) == 100
    apart = min(
        sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5
        for one, other in combinations(list(colours.values())[:50], 2)
    )
    assert apart > 0.02
    for red, green, blue in colours.values():
        assert 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.4  # dark text can be read on it


def test_time_counts_in_a_unit_that_suits_the_run(fifo: RunTimeline) -> None:
    axis = TimeAxis.of([fifo])
    assert (axis.begin, axis.unit) == (0.0, "minutes")
    assert axis.format(90.0) == "1.5 min"


def test_a_log_in_wall_clock_time_begins_with_its_first_event() -> None:
    timeline = timeline_of(Cluster.of(4), [])
    axis = TimeAxis.of([replace(timeline, begin=1.7e9, end=1.7e9 + 100)])
    assert (axis.begin, axis.length, axis.unit) == (1.7e9, 100.0, "seconds")
    assert "first event" in axis.title
