"""A panel of the evaluation: figure or table, the paper's statement, and the agreement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ones.lab.paper.claims import NO_NUMBER
from ones.report import page as html

ASSUMPTION = "restates an assumption of the simulator"
MEASURED = "measured on real training"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A sentence made from the numbers; `agrees` is None if there is nothing to compare with."""

    agrees: bool | None
    sentence: str
    parts: tuple[Verdict, ...] = ()  # verdicts that it combines

    @property
    def mark(self) -> str:
        return {True: "yes", False: "no", None: "maybe"}[self.agrees]


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperPanel:
    anchor: str
    title: str
    paper: str = NO_NUMBER
    ours: str
    n: str
    spread: str
    verdict: Verdict
    assumption: bool = False
    measured: str = ""  # origin of a measurement of real training
    parts: Sequence[str] = field(default_factory=tuple)  # figures and tables

    @property
    def tag(self) -> str:
        return ASSUMPTION if self.assumption else MEASURED if self.measured else ""

    def html(self) -> Iterator[str]:
        yield html.heading(self.title, anchor=self.anchor, tag=self.tag)
        yield from self.parts
        yield html.definitions(
            [
                ("Paper", self.paper, ""),
                ("Here", self.ours, ""),
                ("n", self.n, ""),
                ("Spread", self.spread, ""),
                *([("Measured", self.measured, "")] if self.measured else []),
                *(
                    ("Agreement" if i == 0 else "", part.sentence, part.mark)
                    for i, part in enumerate(self.verdict.parts or (self.verdict,))
                ),
            ]
        )


def near(what: str, ours: float, paper: float, within: float, unit: str = " s") -> Verdict:
    """Is our value within a share of the paper's?"""
    off = ours / paper - 1
    agrees = abs(off) <= within
    word = "agrees" if agrees else "does not agree"
    return Verdict(
        agrees,
        f"{what} {word}: {html.number(ours)}{unit} against {html.number(paper)}{unit}"
        f" ({off:+.0%}; {within:.0%} either way counts as agreement).",
    )


def points(what: str, ours: float, paper: float, within: float) -> Verdict:
    """Do two percentages differ by at most `within` points?"""
    off = ours - paper
    agrees = abs(off) <= within
    word = "agrees" if agrees else "does not agree"
    return Verdict(
        agrees,
        f"{what} {word}: {ours:.1f} % against {paper:.1f} % ({off:+.1f} points; {within:.0f} count"
        " as agreement).",
    )


def same_order(ours: Mapping[str, float], paper: Mapping[str, float]) -> Verdict:
    """Is the order of the schedulers by value the paper's? Over those that both have."""
    both = [name for name in paper if name in ours]
    if len(both) < 2:
        return Verdict(None, "Too few of the paper's schedulers are here to compare their order.")
    here = sorted(both, key=lambda name: ours[name])
    there = sorted(both, key=lambda name: paper[name])
    if here == there:
        return Verdict(True, f"The order is the paper's: {' < '.join(here)}.")
    return Verdict(
        False, f"The order differs: {' < '.join(here)} here, {' < '.join(there)} in the paper."
    )


def all_of(*verdicts: Verdict) -> Verdict:
    """Agrees if every part agrees; parts with nothing to compare with do not count."""
    counted = [verdict.agrees for verdict in verdicts if verdict.agrees is not None]
    sentence = " ".join(verdict.sentence for verdict in verdicts)
    return Verdict(all(counted) if counted else None, sentence, verdicts)


def count(n: int, what: str) -> str:
    """
    >>> count(1, "seed"), count(3, "seed")
    ('1 seed', '3 seeds')
    """
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"
