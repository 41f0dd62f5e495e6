"""Declaration of policy settings: default, help text and valid values in one place."""

from __future__ import annotations

from dataclasses import field, fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Value = TypeVar("_Value")


def setting(
    default: _Value, help: str, *, least: float | None = None, options: tuple[str, ...] = ()
) -> _Value:
    """A field of a dataclass `Settings`; `check_settings` checks `least` and `options`."""
    metadata: dict[str, Any] = {"help": help, "least": least, "options": options}
    return field(default=default, metadata=metadata)


def check_settings(settings: DataclassInstance) -> None:
    """Raises ValueError for a value below its minimum or not among its options."""
    for f in fields(settings):
        value, least = getattr(settings, f.name), f.metadata.get("least")
        options = f.metadata.get("options")
        if options and value not in options:
            raise ValueError(f"{f.name} {value!r} is not one of {', '.join(options)}")
        if least is not None and not value >= least:
            raise ValueError(f"{f.name} {value} is not at least {least}")
