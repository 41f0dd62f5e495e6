"""What training processes and the controller say to one another."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ones.wire import PROTOCOL, CodecError, Orders, Reports, pack, unpack
from ones.wire import messages as m

counts = st.integers(0, 10**12)
words = st.text(max_size=20)
numbers = st.none() | st.floats(allow_nan=False)
reports: st.SearchStrategy[m.Report] = st.one_of(
    st.builds(
        m.Joined,
        dataset_size=counts,
        base_batch=counts,
        optimizer=words,
        parameter_bytes=counts,
        max_local_batch=st.none() | counts,
    ),
    st.builds(m.Ready),
    st.builds(m.Steps, epoch=counts, steps=counts, samples=counts),
    st.builds(
        m.Epoch,
        epoch=counts,
        steps=counts,
        samples=counts,
        loss=numbers,
        accuracy=numbers,
        first_loss=numbers,
        step_seconds=numbers,
        gradient_noise=numbers,
    ),
    st.builds(
        m.Speed,
        gpus=counts,
        nodes=counts,
        batch=counts,
        micro_steps=counts,
        step_seconds=st.floats(allow_nan=False),
        steps=counts,
    ),
    st.builds(m.MemoryLimit, counts),
    st.builds(m.Memory, counts, counts),
    st.builds(
        m.Switched,
        st.floats(allow_nan=False),
        st.lists(words, max_size=3).map(tuple),
        st.dictionaries(words, st.floats(allow_nan=False), max_size=3),
        counts,
    ),
    st.builds(m.SwitchFailed, words, counts),
    st.builds(m.StoreStarted, words),
    st.builds(m.Hung, words),
    st.builds(m.Leaving, st.booleans()),
)
orders: st.SearchStrategy[m.Order] = st.one_of(
    st.builds(
        m.Switch,
        plan=counts,
        members=st.lists(
            st.builds(m.Member, worker=words, batch=counts, micro_steps=counts), max_size=4
        ).map(tuple),
        batch=counts,
        base_batch=counts,
    ),
    st.builds(m.Withdraw, counts, counts),
    st.builds(m.CheckpointAndLeave, counts),
    st.builds(m.End, words, counts),
)
messages: st.SearchStrategy[Reports | Orders] = st.one_of(
    st.builds(
        Reports,
        job=words,
        worker=words,
        plan=counts,
        incarnation=counts,
        first=counts,
        reports=st.lists(reports, max_size=5).map(tuple),
        seen=counts,
    ),
    st.builds(Orders, acknowledged=counts, order=st.none() | orders, store=words),
)


@given(messages)
def test_a_message_arrives_as_it_was_sent(message: Reports | Orders) -> None:
    assert unpack(pack(message)) == message


@given(messages)
def test_a_message_is_plain_json_for_anybody(message: Reports | Orders) -> None:
    assert json.loads(pack(message))["type"] in ("Reports", "Orders")


@given(messages, st.data())
def test_a_message_that_lost_its_end_is_refused(
    message: Reports | Orders, data: st.DataObject
) -> None:
    body = pack(message)
    cut = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(CodecError):
        unpack(body[:cut])


@given(st.binary())
def test_bytes_of_a_stranger_are_refused_and_never_crash(body: bytes) -> None:
    with pytest.raises(CodecError):
        unpack(body)


@pytest.mark.parametrize("spoken", [0, 2, "1", None, [1]])
def test_another_protocol_is_refused_before_anything_else(spoken: object) -> None:
    body = json.dumps({"type": "FromTheFuture", "protocol": spoken}).encode()
    with pytest.raises(CodecError) as caught:
        unpack(body)
    assert str(caught.value) == f"protocol: {spoken!r} is spoken there, {PROTOCOL} here"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"type": "Report"}, "type: 'Report' is not one of Reports, Orders"),
        ({"first": "0"}, "first: '0' is not a whole number"),
        ({"worker": None}, "worker: None is not a string"),
        ({"generation": 3}, "generation: Reports has no such field (3)"),
        ({"reports": {"type": "Ready"}}, "reports: {'type': 'Ready'} is not a list"),
        (
            {"reports": [{"type": "Leaving", "done": 1}]},
            "reports.done: 1 is not true or false",
        ),
        ({"reports": [{"type": "Steps", "epoch": 1}]}, "reports.steps: is missing"),
        # an order is no report, though both are known
        (
            {"reports": [{"type": "End", "reason": "x"}]},
            "reports.type: 'End' is not one of Joined, Ready, Steps, Epoch, Speed, MemoryLimit,"
            " Memory, Switched, SwitchFailed, StoreStarted, Hung, Leaving",
        ),
    ],
)
def test_a_wrong_message_is_refused_by_field_and_value(
    changes: dict[str, object], message: str
) -> None:
    good = {"type": "Reports", "job": "a", "worker": "n0/0", "plan": 1, "first": 0}
    assert unpack(json.dumps(good).encode()) == Reports(job="a", worker="n0/0", plan=1, first=0)
    with pytest.raises(CodecError) as caught:
        unpack(json.dumps({**good, **changes}).encode())
    assert str(caught.value) == message


def test_what_does_not_travel_is_not_packed() -> None:
    with pytest.raises(TypeError, match="Ready does not travel here"):
        pack(m.Ready())  # type: ignore[arg-type]
