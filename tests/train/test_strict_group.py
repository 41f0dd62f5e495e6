"""The training library's use of a device's communication library, by the rules of NCCL.

Operations that never end are looked at after BRIEF seconds: waiting longer would change nothing.
"""

# ruff: noqa: ANN401 (c10d has no types)

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed
from torch import Tensor, nn

from ones.train import process_group
from ones.train.emulation.strict_group import Device, StrictGroup
from ones.train.process_group import GroupLostError, ProcessGroup, wait_all
from ones.train.replica import STATE_LOST, StateLostError, broadcast_buffers
from ones.train.tensor_messages import copy_to_cpu, send_value
from tests.processes import PATIENCE
from tests.train.test_equivalence import equal
from tests.train.test_replica import replica
from tests.train.thread_groups import CPU, run_in_group, strict_groups

BRIEF = 0.3
c10d: Any = torch.distributed
Pair = list[StrictGroup]


def in_threads(*calls: Callable[[], Any]) -> list[threading.Thread]:
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    return threads


def connect_pair(name: str, devices: list[Device], store: Any) -> Pair:
    prefixed = c10d.PrefixStore(name, store)
    pair = [StrictGroup(prefixed, rank, 2, devices[rank]) for rank in range(2)]
    for thread in in_threads(*[lambda g=g: g.eager_connect_single_device(CPU) for g in pair]):
        thread.join(PATIENCE)
    return pair


@pytest.fixture
def pairs() -> Iterator[tuple[Pair, Pair]]:
    """Two groups of the same two members."""
    store, devices = c10d.HashStore(), [Device(), Device()]
    pairs = connect_pair("a", devices, store), connect_pair("b", devices, store)
    yield pairs
    for pair in pairs:
        for member in pair:
            member.abort()


def start(member: StrictGroup, tensor: Tensor | None = None) -> tuple[threading.Thread, Tensor]:
    """Starts a sum and a thread that waits for it."""
    tensor = torch.ones(4) if tensor is None else tensor
    work = member.allreduce([tensor], c10d.AllreduceOptions())
    (thread,) = in_threads(work.wait)
    return thread, tensor


# the double itself


def test_one_order_of_submission_on_all_members(pairs: tuple[Pair, Pair]) -> None:
    a, b = pairs
    for first, second in ((a, b), (b, a)):  # in the same order on both
        found = [start(group[rank]) for rank in range(2) for group in (first, second)]
        for thread, tensor in found:
            thread.join(PATIENCE)
            assert tensor.tolist() == [2.0] * 4
    waiting = [start(group) for group in (a[0], b[0], b[1], a[1])]
    for thread, _ in waiting:
        thread.join(BRIEF)
        assert thread.is_alive()
    for member in (*a, *b):
        member.abort()
    for thread, _ in waiting:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_a_missing_member_is_waited_for_until_the_abort_which_leaves_garbage(
    pairs: tuple[Pair, Pair],
) -> None:
    (first, second), _ = pairs
    thread, tensor = start(first)
    second.abort()  # as if it had died: its connections end
    thread.join(BRIEF)
    assert thread.is_alive()
    first.abort()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert tensor.tolist() not in ([1.0] * 4, [2.0] * 4)
    with pytest.raises(RuntimeError, match="aborted"):
        first.allreduce([tensor], c10d.AllreduceOptions())


def test_members_that_submit_different_operations_wait_for_ever(pairs: tuple[Pair, Pair]) -> None:
    (first, second), _ = pairs
    waiting = [start(first), start(second, torch.ones(5))]
    for thread, _ in waiting:
        thread.join(BRIEF)
        assert thread.is_alive()


def test_a_group_connects_in_its_first_operation_if_not_before() -> None:
    """Then nothing guards it: a member waits in `allreduce` itself until the others come."""
    store = c10d.HashStore()
    pair = [StrictGroup(c10d.PrefixStore("lazy", store), rank, 2, Device()) for rank in range(2)]
    (first,) = in_threads(lambda: start(pair[0])[0].join(PATIENCE))
    first.join(BRIEF)
    assert first.is_alive()
    assert not pair[0].operations
    thread, tensor = start(pair[1])
    first.join(PATIENCE)
    thread.join(PATIENCE)
    assert tensor.tolist() == [2.0] * 4
    assert not any(member.connected_eagerly for member in pair)
    for member in pair:
        member.abort()


def test_tensors_of_the_host_and_messages_are_refused() -> None:
    member = StrictGroup(None, 0, 2, Device(), is_on_device=lambda tensor: tensor.dim() > 0)
    with pytest.raises(ValueError, match="must be CUDA"):
        member.allreduce([torch.ones(())], c10d.AllreduceOptions())
    assert not hasattr(member, "send")
    assert not hasattr(member, "recv")


# the library


def backend_of(group: ProcessGroup) -> StrictGroup:
    found = group._device_backend
    assert isinstance(found, StrictGroup)
    return found


def test_the_device_connects_within_connect() -> None:
    """A lazy group would connect in its first operation, which no timeout guards."""
    with strict_groups():
        assert run_in_group(2, lambda group, _: backend_of(group).connected_eagerly) == [True] * 2


def test_small_collectives_and_leaving_use_the_side_channel() -> None:
    def work(group: ProcessGroup, rank: int) -> list[str]:
        assert group.all_gather(rank - 1) == [-1, 0, 1]
        assert group.all_equal(7)
        total = torch.full((3,), float(rank))
        wait_all([group.all_reduce(total)])
        group.drain()
        assert total.tolist() == [3.0] * 3
        group.acknowledge_leave(range(3))
        return backend_of(group).operations

    with strict_groups():
        assert run_in_group(3, work) == [["allreduce 3 torch.float32"]] * 3


def test_a_lost_member_ends_the_wait_and_the_result_is_refused() -> None:
    def work(group: ProcessGroup, rank: int) -> str:
        tensor = torch.ones(4)
        if rank == 1:
            lost.wait(PATIENCE)
            return ""
        work = group.all_reduce(tensor)
        in_threads(lambda: group.abort(hangs=False))
        wait_all([work])  # no error
        try:
            group.drain()
        except GroupLostError as error:
            return str(error)
        finally:
            lost.set()
        return "drained"

    lost = threading.Event()
    with strict_groups():
        assert "a member is lost" in run_in_group(2, work)[0]


def test_a_device_that_cannot_be_aborted_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("unhandled cuda error")

    monkeypatch.setattr(StrictGroup, "abort", refuse)
    with strict_groups():
        assert run_in_group(2, lambda group, _: group.close()) == [False, False]


def test_an_abort_that_does_not_end_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(StrictGroup, "abort", lambda _: released.wait(PATIENCE))
    monkeypatch.setattr(process_group, "_ABORT_SECONDS", 0.05)
    with strict_groups():
        assert run_in_group(2, lambda group, _: group.close()) == [False, False]
    released.set()


@pytest.mark.parametrize("wide", [8, 600])
@pytest.mark.parametrize("marks", [(3, -1, 3, 2), (-1, 2, 3, -1), (-1, -1, -1, -1)])
def test_adam_state_of_device_and_host_reaches_all(wide: int, marks: tuple[int, ...]) -> None:
    """Tensors without a dimension, such as Adam's step counts, are here those of the host."""

    def work(group: ProcessGroup, rank: int) -> dict[str, Any]:
        ahead = marks[rank] == 3
        mine = replica(9 if ahead else rank, max(0, marks[rank]), wide=wide)
        received = mine.synchronise(group, marks[rank])
        assert received is (rank != 0 if marks[rank] == max(marks) == -1 else not ahead)
        broadcast_buffers(group, mine.model)
        state: dict[str, Any] = copy_to_cpu(mine.state())
        return state

    with strict_groups(is_on_device=lambda tensor: tensor.dim() > 0):
        states = run_in_group(4, work)
    for state in states[1:]:
        assert equal(states[0], state)
    assert states[0]["progress"]["step"] == max(0, *marks)


class MetaGroup(ProcessGroup):
    """A source on the meta device; notes what is given to which channel."""

    def __init__(self) -> None:
        super().__init__(None, 0, 2, device=torch.device("meta"), device_backend=object())
        self.broadcasts: list[str] = []
        self.messages: list[str] = []

    def all_gather(self, number: int) -> list[int]:
        return [number, -1]

    def broadcast(self, tensor: Tensor, source: int) -> Any:
        self.broadcasts.append(tensor.device.type)
        return self

    def send(self, tensor: Tensor, receiver: int, tag: int = 0) -> Any:
        self.messages.append(tensor.device.type)
        return self

    def wait(self) -> None:
        pass

    def drain(self) -> None:
        pass


@pytest.mark.parametrize("capturable", [False, True])
def test_only_device_tensors_are_given_to_the_device(*, capturable: bool) -> None:
    mine = replica(1, 1)
    mine.model.to("meta")
    for p, state in mine.optimizer.state.items():
        moved = {name: value.to("meta") for name, value in state.items()}
        mine.optimizer.state[p] = moved if capturable else moved | {"step": state["step"]}
    group = MetaGroup()
    mine.synchronise(group, 1)
    broadcast_buffers(group, mine.model)
    assert set(group.broadcasts) == {"meta"}
    assert set(group.messages) == {"cpu"}
    assert len(group.messages) == (2 if capturable else 3)  # header, and the step counts


# states that differ, and states that are lost


@pytest.mark.parametrize("is_strict", [False, True])
@pytest.mark.parametrize("other", range(3))
def test_a_replica_that_differs_by_one_bit_gets_the_state_of_the_others(
    other: int, *, is_strict: bool
) -> None:
    def work(group: ProcessGroup, rank: int) -> tuple[bool, Any]:
        mine = replica(1, 2)
        if rank == other:
            with torch.no_grad():
                weight = next(mine.model.parameters()).view(-1)[:1]
                weight.copy_(torch.nextafter(weight, weight + 1))
        received = mine.synchronise(group, 2, compare=True)
        return received, copy_to_cpu(mine.state())

    if is_strict:
        with strict_groups():
            found = run_in_group(3, work)
    else:
        found = run_in_group(3, work)
    assert [received for received, _ in found] == [rank == other for rank in range(3)]
    assert equal(found[0][1], found[1][1])
    assert equal(found[0][1], found[2][1])


def test_a_worker_without_state_is_not_the_truth() -> None:
    """Its group had members that have trained; they are lost before it has their state."""

    def work(group: ProcessGroup, rank: int, positions: tuple[int, int]) -> bool:
        mine = replica(rank, 0)
        with pytest.raises(StateLostError):
            mine.synchronise(group, positions[rank])
        return mine.has_state

    for positions in ((STATE_LOST, STATE_LOST), (STATE_LOST, -1)):
        found = run_in_group(2, lambda group, rank: work(group, rank, positions))  # noqa: B023
        assert found == [False, False]


def test_with_a_checkpoint_rank_0_is_the_truth() -> None:
    def work(group: ProcessGroup, rank: int) -> bool:
        return replica(rank, 0).synchronise(group, (-1, STATE_LOST)[rank])

    assert run_in_group(2, work) == [False, True]


def test_a_state_that_arrived_in_part_is_none() -> None:
    """Its progress is still that of before, and would be believed after the next loss."""

    def work(group: ProcessGroup, rank: int) -> bool:
        mine = replica(rank, 2 - rank)
        if rank == 0:  # sends the header only
            group.all_gather(2)
            _, header = mine._describe()
            wait_all([work for work, _ in send_value(group, header, [1])])
            received.wait(PATIENCE)
            group.abort(hangs=True)
            return mine.has_state
        allocate = mine._allocate

        def allocate_and_tell(group: ProcessGroup, source: int) -> Any:
            try:
                return allocate(group, source)
            finally:
                received.set()

        mine._allocate = allocate_and_tell  # type: ignore[method-assign]
        with pytest.raises(GroupLostError):
            mine.synchronise(group, 1)
        assert mine.group_has_trained, "so it may not begin anew"
        return mine.has_state

    received = threading.Event()
    assert run_in_group(2, work) == [True, False]


def test_models_of_two_shapes_differ_in_digest() -> None:
    a, b = replica(1, 0), replica(1, 0)
    b.model = nn.Sequential(*b.model.children(), nn.Identity())
    assert a.digest() == b.digest()
    with torch.no_grad():
        for model, shape in ((a.model, (2, 3)), (b.model, (3, 2))):
            model.register_parameter("more", nn.Parameter(torch.ones(shape)))
    assert a.digest() != b.digest()


def test_a_digest_of_parameters_that_share_memory() -> None:
    """`vector_to_parameters` makes views that begin at any byte."""
    plain, shared = replica(1, 1), replica(1, 1)
    vector = nn.utils.parameters_to_vector(shared.model.parameters()).detach()
    values = torch.cat([torch.zeros(1), vector])[1:]  # from the fourth byte on
    nn.utils.vector_to_parameters(values, shared.model.parameters())
    assert any(p.storage_offset() % 2 for p in shared.model.parameters())
    assert shared.digest() == plain.digest()
