"""What training processes and the controller say to one another."""

from __future__ import annotations

import json
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ones.wire import PROTOCOL, CodecError, Orders, Reports, pack, unpack
from ones.wire import messages as m
from ones.wire.bounds import NotFinite

numbers = st.integers(0, 2**53)
positives = st.integers(1, 2**53)
batches = st.integers(1, 2**31)
sizes = st.integers(1, 2**20)
epochs = st.integers(1, 10**9)
words = st.text(max_size=20)
workers = st.builds("{}/{}".format, st.text("abn0-.", min_size=1, max_size=9), st.integers(0, 99))
measures = st.none() | st.floats(-1e30, 1e30) | st.sampled_from(typing.get_args(NotFinite))
step_seconds = st.floats(1e-9, 1e6)
pauses = st.floats(0, 1e6)
reports: st.SearchStrategy[m.Report] = st.one_of(
    st.builds(
        m.Joined,
        dataset_size=positives,
        base_batch=batches,
        optimizer=words,
        parameter_bytes=numbers,
        max_local_batch=st.none() | batches,
    ),
    st.builds(m.Ready),
    st.builds(m.Steps, epoch=epochs, steps=numbers, samples=numbers),
    st.builds(
        m.Epoch,
        epoch=epochs,
        steps=numbers,
        samples=numbers,
        loss=measures,
        accuracy=measures,
        first_loss=measures,
        step_seconds=st.none() | step_seconds,
        gradient_noise=measures,
        planned_epochs=st.none() | epochs,
    ),
    st.builds(
        m.Speed,
        gpus=sizes,
        nodes=sizes,
        batch=batches,
        micro_steps=sizes,
        step_seconds=step_seconds,
        steps=positives,
    ),
    st.builds(m.MemoryLimit, batches),
    st.builds(m.Memory, numbers, numbers),
    st.builds(
        m.Switched,
        pauses,
        st.lists(workers, max_size=3).map(tuple),
        st.dictionaries(words, pauses, max_size=3),
        numbers,
    ),
    st.builds(m.SwitchFailed, words, numbers),
    st.builds(m.StoreStarted, words),
    st.builds(m.Hung, workers),
    st.builds(m.Leaving, st.booleans()),
)
orders: st.SearchStrategy[m.Order] = st.one_of(
    st.builds(
        m.Switch,
        plan=numbers,
        members=st.lists(
            st.builds(m.Member, worker=workers, batch=numbers, micro_steps=positives), max_size=4
        ).map(tuple),
        batch=numbers,
        base_batch=numbers,
    ),
    st.builds(m.Withdraw, numbers, numbers),
    st.builds(m.CheckpointAndLeave, numbers),
    st.builds(m.End, words, numbers),
)
messages: st.SearchStrategy[Reports | Orders] = st.one_of(
    st.builds(
        Reports,
        job=words,
        worker=workers,
        plan=numbers,
        incarnation=numbers,
        first=numbers,
        reports=st.lists(reports, max_size=5).map(tuple),
        seen=numbers,
    ),
    st.builds(Orders, acknowledged=st.integers(-1, 2**53), order=st.none() | orders, store=words),
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
            "reports[0].done: 1 is not true or false",
        ),
        ({"reports": [{"type": "Steps", "epoch": 1}]}, "reports[0].steps: is missing"),
        # an order is no report, though both are known
        (
            {"reports": [{"type": "End", "reason": "x"}]},
            "reports[0].type: 'End' is not one of Joined, Ready, Steps, Epoch, Speed, MemoryLimit,"
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
