"""The HTTP interface: everything is validated at this border, nothing is decided here."""

from __future__ import annotations

from ones.control.api.app import create_app

__all__ = ["create_app"]
