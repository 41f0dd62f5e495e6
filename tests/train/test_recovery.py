"""After a loss: who has nothing to go on with, and is told to go, goes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ones.train.formation import Formation
from ones.train.place import TERMINATED, Place
from ones.train.recovery import reform
from ones.wire.messages import End, Member


class Newcomer(Place):
    """As `Place`, on a roll call that is interrupted by an order and then says: go on alone."""

    def __init__(self, *, has_state: bool) -> None:
        self.formation = Formation(2, 0, (Member(worker="n/0", batch=8),))
        self.end, self.is_terminated, self.must_save_and_leave = None, False, False
        self.replica = cast(Any, SimpleNamespace(has_state=has_state, progress=None))
        self.upcoming = cast(Any, SimpleNamespace(drop=lambda: None, is_there=False))
        self.asked = 0
        calls = SimpleNamespace(reform=self._reform, expelled=False)
        self.meeting = cast(
            Any,
            SimpleNamespace(
                expect=lambda workers: None, place=lambda f: True, calls=lambda may_start: calls
            ),
        )

    mark = 0

    def close_group(self) -> None:
        pass

    def part(self, *, done: bool) -> None:
        assert not done

    def _reform(self, *_: object) -> None:
        self.asked += 1
        assert self.asked < 3, "it waits on"


def test_a_newcomer_without_state_does_not_begin_anew_what_the_others_have_ended() -> None:
    place = Newcomer(has_state=False)
    place.end = End("finished", 3)
    with pytest.raises(SystemExit):
        reform(place, 0.0)
    assert place.asked == 1


def test_it_goes_although_the_exit_of_its_signal_was_swallowed() -> None:
    place = Newcomer(has_state=False)
    with pytest.raises(SystemExit) as exit:
        place.terminate()
    assert exit.value.code == TERMINATED
    with pytest.raises(SystemExit):
        reform(place, 0.0)


def test_one_that_has_the_state_stays_until_it_is_safe() -> None:
    place = Newcomer(has_state=True)
    place.end = End("finished", 3)
    with pytest.raises(AssertionError, match="it waits on"):
        reform(place, 0.0)
