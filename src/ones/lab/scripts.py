"""The example scripts, wherever this package lies: installed with it, or beside its source."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from ones.errors import WorldError

_PACKAGE = Path(__file__).parents[1]
#: in a wheel; in a clone
_PLACES = (_PACKAGE / "examples", _PACKAGE.parents[1] / "examples")


def examples() -> Path:
    """The directory of digits.py and the others."""
    for place in _PLACES:
        if (place / "digits.py").is_file():
            return place
    raise WorldError(
        "the example scripts are not there: neither in this installation nor beside its source;"
        " install ones from its wheel or from a clone"
    )


def check_installed(what: str, *modules: str) -> None:
    """One line on all that is missing."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise WorldError(
            f"{what} needs {', '.join(missing)}, not installed here: pip install 'ones[all]'"
        )
