"""Where the example scripts of this installation are."""

from __future__ import annotations

from pathlib import Path

from ones.errors import WorldError

_PACKAGE = Path(__file__).resolve().parents[1]
#: root of the clone that this code runs from; not meaningful in an installed wheel
CHECKOUT = _PACKAGE.parents[1]
#: in a wheel; in a clone
_EXAMPLE_DIRECTORIES = (_PACKAGE / "examples", CHECKOUT / "examples")


def examples() -> Path:
    """Directory of digits.py and the other example scripts."""
    for directory in _EXAMPLE_DIRECTORIES:
        if (directory / "digits.py").is_file():
            return directory
    raise WorldError(
        "the example scripts are not there: neither in this installation nor beside its source;"
        " install ones from its wheel or from a clone"
    )
