"""Reads a training script and says which known shape it has and what would make it elastic.

The script is parsed and never run: nothing of it is imported.
"""

from __future__ import annotations

from ones.apps.script_check.report import Change, ScriptReport, check_script

__all__ = ["Change", "ScriptReport", "check_script"]
