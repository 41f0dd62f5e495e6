"""Measurements of real training: results of `ones bench convergence` and `rescale --paper`.

The package contains one result of each. Files of `ones paper --training` replace them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ones.errors import InvalidFileError

HOME = Path(__file__).with_name("results")  # a file for each benchmark, named after it
NEEDED = {
    "convergence": ("case", "figure", "workers", "n"),
    "rescale": ("parameter_mb", "change", "pause_ms", "rival", "rival_pause_ms", "ratio", "n"),
}


@dataclass(frozen=True, slots=True)
class Measurement:
    rows: Sequence[Mapping[str, Any]]
    origin: str  # a sentence: commit, date, machine, load


def measurements(files: Sequence[Path] = ()) -> dict[str, Measurement]:
    """Measurements by name of the benchmark; later files win."""
    included = [HOME / f"{bench}.json" for bench in NEEDED]
    found = {}
    for path in [*included, *files]:
        bench, measurement = _read(path, is_included=path.parent == HOME)
        found[bench] = measurement
    return found


def _read(path: Path, *, is_included: bool) -> tuple[str, Measurement]:
    try:
        frame = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise InvalidFileError(path, f"cannot be read: {problem}") from problem
    bench = frame.get("bench") if isinstance(frame, dict) else None
    rows = frame.get("rows") if isinstance(frame, dict) else None
    if bench not in NEEDED or not isinstance(rows, list) or not rows:
        raise InvalidFileError(
            path, f"is not what `ones bench {' or '.join(NEEDED)} --json` prints"
        )
    for row in rows:
        missing = [key for key in NEEDED[bench] if key not in row]
        if missing:
            raise InvalidFileError(path, f"a row of {bench} lacks {missing[0]}")
    return bench, Measurement(
        rows, _origin(frame, "carried by the package" if is_included else path)
    )


def _origin(frame: Mapping[str, Any], place: object) -> str:
    return (
        f"Real training by `ones bench {frame['bench']}`, {frame.get('measured_at', 'no date')},"
        f" commit {frame.get('commit') or 'unknown'}, {frame.get('cores', '?')} CPU cores, load"
        f" average {frame.get('load_average', '?')} ({place})."
    )
