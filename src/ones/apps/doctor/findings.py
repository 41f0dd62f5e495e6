"""The result of a check."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

OK, NOTE, WARNING, PROBLEM = "ok", "note", "warning", "problem"
GB = 1 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    status: str
    found: str
    advice: str = ""


Findings = Iterator[Finding]
