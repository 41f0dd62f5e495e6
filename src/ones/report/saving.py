"""Pictures as files: whole or not at all, and the same picture as the same bytes."""

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


def format_of(path: Path) -> str:
    """By the suffix; refused before anything is drawn."""
    suffix = path.suffix.removeprefix(".").lower()
    if suffix not in FORMATS:
        raise InvalidSettingError(f"{path}: a picture ends in .png or .svg")
    return suffix


@contextmanager
def drawing_style() -> Iterator[None]:
    """Settings that matplotlib reads while it draws and while it saves: hold it around both."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a user's own settings would change the picture
        matplotlib.rcParams.update(
            {
                "font.family": "DejaVu Sans",  # comes with matplotlib
                "hatch.linewidth": 0.8,
                "svg.hashsalt": "ones",
            }
        )
        yield


def save(figure: Figure, path: Path) -> None:
    """Drawn in memory, written beside, renamed: an interruption leaves the old file or none."""
    kind = format_of(path)
    drawn = BytesIO()
    figure.savefig(drawn, format=kind, metadata={"Date": None} if kind == "svg" else None)
    beside = path.with_name(f".{path.name}.new")
    try:
        try:
            beside.write_bytes(drawn.getbuffer())
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as problem:
        raise WorldError(f"{path}: cannot be written: {problem.strerror}") from problem
