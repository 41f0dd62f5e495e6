"""The life cycle table: complete, and the only way between phases."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from ones.core import lifecycle
from ones.core.lifecycle import TABLE, Phase, Trigger, diagram, transition
from ones.errors import BrokenEngineError


def test_every_phase_has_a_row_and_every_trigger_is_used() -> None:
    assert set(TABLE) == set(Phase)
    assert {trigger for row in TABLE.values() for trigger in row} == set(Trigger)


def test_every_phase_can_be_reached() -> None:
    reached = {Phase.WAITING}
    while more := {m.phase for p in reached for m in TABLE[p].values()} - reached:
        reached |= more
    assert reached == set(Phase)


def test_a_job_with_a_decided_end_never_trains_again() -> None:
    assert {moved.phase for moved in TABLE[Phase.ENDING].values()} == {Phase.ENDING}
    for phase in set(Phase) - {Phase.ENDING}:
        assert transition("a", phase, Trigger.END_DECIDED) == (Phase.ENDING, True)


def test_what_the_table_does_not_have_is_an_error() -> None:
    with pytest.raises(
        BrokenEngineError, match=r"job a-1: 'all workers ready' .* in phase waiting"
    ):
        transition("a-1", Phase.WAITING, Trigger.ALL_READY)


def test_the_diagram_has_every_change_of_phase() -> None:
    lines = diagram().splitlines()
    for phase, row in TABLE.items():
        for target in {moved.phase for moved in row.values()} - {phase}:
            assert any(f"{phase.value} --> {target.value}:" in line for line in lines)


def test_no_other_code_sets_a_phase() -> None:
    """In the core a phase is assigned in `State.advance`, and when a snapshot is restored."""
    found = []
    for path in Path(lifecycle.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            targets = node.targets if isinstance(node, ast.Assign) else []
            if any(isinstance(t, ast.Attribute) and t.attr == "phase" for t in targets):
                found.append(path.name)
    assert found == ["state.py", "state.py"]
