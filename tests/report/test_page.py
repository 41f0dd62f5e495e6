"""Pages and charts: nothing is lost, nothing is loaded, and numbers can be read."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ones.report import page as html
from ones.report.charts import Axis, Bar, Curve, bars, boxes, curves, draw, shares

VOID = {"meta", "img", "br"}


class Balanced(HTMLParser):
    """Fails when a tag is closed that is not the last one opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def drawn(home: Path) -> Path:
    times = [("one", [1.0, 5.0, 300.0]), ("two", [2.0, 2.0]), ("none", [])]
    return draw(
        home,
        "chart",
        [
            bars("means", "seconds", [Bar("one", 5.0, 4.0, 6.0, mark=7.0), Bar("two", 0.0)]),
            boxes("times", Axis("seconds", log=True), times),
            shares("shares", Axis("seconds of a job"), times),
            curves("lines", Axis("GPUs", ticks=[16, 64]), Axis("mean (s)", start=0),
                   [Curve("a", [16, 64], [3.0, 1.0], [2.0, 0.5], [4.0, 1.5])]),
        ],
    )  # fmt: skip


def test_a_chart_is_kept_twice_and_is_the_same_bytes_again(tmp_path: Path) -> None:
    svg = drawn(tmp_path / "a")
    assert svg.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert ET.parse(svg).getroot().tag.endswith("svg")
    assert svg.read_bytes() == drawn(tmp_path / "b").read_bytes()


def test_a_page_is_whole_and_loads_nothing(tmp_path: Path) -> None:
    text = html.page(
        "A <title> & more",
        [
            html.contents([("a", "First & last")]),
            html.heading("First & last", anchor="a", tag="a tag"),
            html.paragraph("Take `a<b>` and <script>alert(1)</script>.", quiet=True, kind="no"),
            html.table(["name", "n"], [["`x`", 1], ["y", None]], caption="`n` of", strong=[1]),
            html.definitions([("Paper", "5 < 6", ""), ("Agreement", "yes", "yes")]),
            html.command("ones paper > /dev/null"),
            html.picture(drawn(tmp_path), 'Says "hello".'),
        ],
    )
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    assert "<script>" not in text
    assert "<code>a&lt;b&gt;</code>" in text
    assert '<td class="number">1</td>' in text
    assert '<td class="number">-</td>' in text
    assert 'alt="Says &quot;hello&quot;."' in text
    assert "http://" not in text
    assert "https://" not in text


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (12_345.6, "12,346"),
        (32.0, "32"),
        (12.345, "12.3"),
        (0.04567, "0.0457"),
        (7, "7"),
        (None, "-"),
    ],
)
def test_numbers_are_as_long_as_they_are_worth(value: float | None, shown: str) -> None:
    assert html.number(value) == shown
