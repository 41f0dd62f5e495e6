"""`ones notify`: what people type."""

from __future__ import annotations

from tests.cli.test_commands import Ones, ones
from tests.control.inside import Inside

__all__ = ["ones"]


def test_a_notification_is_added_tried_listed_and_removed(served: Inside, ones: Ones) -> None:
    assert ones("notify", "list").err == "no notifications; add one: ones notify add URL\n"
    added = ones("notify", "add", "--on", "end, failure", "--tag", "x", "--", "true")
    assert (added.code, len(added.out.strip())) == (0, 43)
    assert added.err == "notification 1; try it: ones notify test 1\n"
    assert ones("notify", "test", "1").err == "notification 1: delivered\n"
    listed = ones("notify", "list").out
    assert "end,failure" in listed
    url = ones("notify", "add", "https://127.0.0.1:1/hook", "--json").json
    assert (url["number"], url["command"]) == (2, [])
    failed = ones("notify", "test", "2")
    assert (failed.code, "notification 2: " in failed.err) == (2, True)
    for number in ("1", "2"):
        assert ones("notify", "remove", number).err == f"notification {number}: removed\n"
    assert "number: 0 is not at least 1" in ones("notify", "remove", "0").err
    assert ones("notify", "remove", "9").code == 2
