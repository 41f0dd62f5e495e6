"""Charts as files: written atomically, and the same bytes for the same chart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from ones.errors import InvalidSettingError, WorldError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")
DPI = 110.0


def format_of(path: Path) -> str:
    """The format, by the suffix. Call it before drawing: it raises InvalidSettingError."""
    suffix = path.suffix.removeprefix(".").lower()
    if suffix not in FORMATS:
        raise InvalidSettingError(f"{path}: a picture ends in .png or .svg")
    return suffix


@contextmanager
def drawing_style() -> Iterator[None]:
    """Settings of matplotlib, for drawing and saving."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # ignore the user's settings
        matplotlib.rcParams.update(
            {
                "font.family": "DejaVu Sans",  # comes with matplotlib
                "hatch.linewidth": 0.8,
                "svg.hashsalt": "ones",
            }
        )
        yield


def save(figure: Figure, path: Path) -> None:
    """Writes the file atomically. Raises WorldError."""
    kind = format_of(path)
    drawn = BytesIO()
    figure.savefig(drawn, format=kind, metadata={"Date": None} if kind == "svg" else None)
    temporary = path.with_name(f".{path.name}.new")
    try:
        try:
            temporary.write_bytes(drawn.getbuffer())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as problem:
        raise WorldError(f"{path}: cannot be written: {problem.strerror}") from problem
