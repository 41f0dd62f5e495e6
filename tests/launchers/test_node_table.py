"""The table of nodes, and its file."""

from __future__ import annotations

from pathlib import Path

from ones.launchers import LauncherEvent, Slot, SlotLost, SlotSuspect, SlotUp
from ones.launchers.node_table import NodeTable, RemoteNode

SLOT = Slot(node="n0", index=1, kind="gpu", device="3", used_by=("x (pid 7)",), group="nvlink0")


def test_nodes_are_read_from_the_file_as_they_were(tmp_path: Path) -> None:
    events: list[LauncherEvent] = []
    nodes = NodeTable(tmp_path, events.append, RemoteNode)
    assert nodes.stored() == []
    node = RemoteNode("n0", [SLOT], "7")
    nodes.add(node)
    assert nodes.stored() == [node]
    again = NodeTable(tmp_path, events.append, RemoteNode)
    again.restore()
    assert again.slots() == [SLOT]
    assert again.by_slot() == {"n0/1": node}
    (tmp_path / "nodes.json").write_text('{"n0": ["7", ')
    assert nodes.stored() == []


def test_changes_of_a_node_are_events_of_its_slots(tmp_path: Path) -> None:
    events: list[LauncherEvent] = []
    nodes = NodeTable(tmp_path, events.append, RemoteNode)
    node = RemoteNode("n0", [SLOT], "7")
    nodes.add(node)
    nodes.suspect(node, "silent")
    nodes.remove(node, "gone")
    assert events == [SlotUp(SLOT), SlotSuspect("n0/1", "silent"), SlotLost("n0/1", "gone")]
    assert nodes.slots() == []
    nodes.add(node)
    nodes.add(RemoteNode("n1", [], "7"))
    events.clear()
    nodes.keep_only(["n1", "n2"])
    assert [node.name for node in nodes.all()] == ["n1"]
    assert events == []
