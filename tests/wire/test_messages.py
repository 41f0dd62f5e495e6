"""What training processes and the controller say to one another."""

from __future__ import annotations

import json
import math
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ones.wire import PROTOCOL, CodecError, Orders, Reports, pack, unpack
from ones.wire import messages as m
from ones.wire.bounds import NotFinite, as_measure, as_text
from ones.wire.work import Unit, Work

numbers = st.integers(0, 2**53)
positives = st.integers(1, 2**53)
batches = st.integers(1, 2**31)
sizes = st.integers(1, 2**20)
epoch_numbers = st.integers(0, 10**9)
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
    st.builds(
        m.Steps,
        epoch=epoch_numbers,
        steps=numbers,
        samples=numbers,
        gradient_noise=measures,
        planned_epochs=st.none() | epochs,
        work=st.none() | st.builds(Work, st.sampled_from(Unit), numbers, st.none() | positives),
    ),
    st.builds(
        m.Epoch,
        epoch=epoch_numbers,
        steps=numbers,
        samples=numbers,
        loss=measures,
        accuracy=measures,
        first_loss=measures,
        step_seconds=st.none() | step_seconds,
        gradient_noise=measures,
        planned_epochs=st.none() | epochs,
        work=st.none() | st.builds(Work, st.sampled_from(Unit), numbers, st.none() | positives),
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
    st.builds(m.TrackerLink, st.just("https://runs.example/1")),
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
def test_a_message_is_plain_json(message: Reports | Orders) -> None:
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
    assert str(caught.value) == f"protocol: the sender uses {spoken!r}, this side {PROTOCOL}"


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
        (
            {"reports": [{"type": "TrackerLink", "url": "javascript:alert(1)"}]},
            "reports[0].url: 'javascript:alert(1)' is not an http(s) address",
        ),
        (
            {"reports": [{"type": "TrackerLink", "url": 'https://x/"><b>'}]},
            """reports[0].url: 'https://x/"><b>' is not an http(s) address""",
        ),
        # an order is no report, though both are known
        (
            {"reports": [{"type": "End", "reason": "x"}]},
            "reports[0].type: 'End' is not one of Joined, Ready, Steps, Epoch, Speed, MemoryLimit,"
            " Memory, Switched, SwitchFailed, StoreStarted, TrackerLink, Hung, Leaving",
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
    with pytest.raises(TypeError, match="Ready is not a message of the worker protocol"):
        pack(m.Ready())  # type: ignore[arg-type]


GOOD = {"type": "Reports", "job": "a", "worker": "n0/0", "plan": 1, "first": 0}
HONEST: dict[str, dict[str, object]] = {
    "Joined": {"dataset_size": 9, "base_batch": 4, "optimizer": "sgd", "parameter_bytes": 8},
    "Steps": {"epoch": 1, "steps": 2, "samples": 8},
    "Epoch": {"epoch": 1, "steps": 2, "samples": 8, "loss": 0.5},
    "Speed": {
        "gpus": 1,
        "nodes": 1,
        "batch": 8,
        "micro_steps": 1,
        "step_seconds": 0.5,
        "steps": 20,
    },
    "MemoryLimit": {"max_local_batch": 8},
    "Switched": {"pause_seconds": 0.1, "members": ["n0/0"]},
    "SwitchFailed": {"reason": "x"},
    "Hung": {"worker": "n0/0"},
}


def body_of(kind: str, **changes: object) -> bytes:
    report = {"type": kind, **HONEST[kind], **changes}
    return json.dumps({**GOOD, "reports": [report]}).encode()


@pytest.mark.parametrize(
    ("kind", "field", "value", "problem"),
    [
        ("Joined", "dataset_size", 0, "0 is not at least 1"),
        ("Joined", "base_batch", 0, "0 is not at least 1"),
        ("Joined", "base_batch", 2**31 + 1, "2147483649 is more than 2147483648"),
        ("Joined", "max_local_batch", 0, "0 is not at least 1"),
        ("Joined", "parameter_bytes", -1, "-1 is not at least 0"),
        ("Joined", "optimizer", "x" * 301, f"'{'x' * 56}... is longer than 300 characters"),
        ("Steps", "epoch", -1, "-1 is not at least 0"),
        ("Steps", "samples", 10**400 - 1, f"{'9' * 57}... is more than {2**53}"),
        ("Epoch", "planned_epochs", 0, "0 is not at least 1"),
        ("Epoch", "epoch", 10**9 + 1, "1000000001 is more than 1000000000"),
        ("Epoch", "loss", 1e31, "1e+31 is more than 1e+30"),
        ("Epoch", "loss", "NaN", "'NaN' is not one of a number, -inf, inf, nan"),
        ("Epoch", "step_seconds", 0.0, "0.0 is not at least 1e-09"),
        ("Speed", "steps", 0, "0 is not at least 1"),
        ("Speed", "gpus", 0, "0 is not at least 1"),
        ("Speed", "nodes", -1, "-1 is not at least 1"),
        ("Speed", "step_seconds", "nan", "'nan' is not a number"),
        ("Speed", "step_seconds", None, "None is not a number"),
        ("Speed", "step_seconds", 1e7, "10000000.0 is more than 1e+06"),
        ("Speed", "micro_steps", 2**21, "2097152 is more than 1048576"),
        ("MemoryLimit", "max_local_batch", 0, "0 is not at least 1"),
        ("Switched", "pause_seconds", -0.1, "-0.1 is not at least 0"),
        ("Switched", "parts", {str(i): 0.1 for i in range(65)}, "has more than 64 items"),
        ("SwitchFailed", "reason", "x" * 2001, f"'{'x' * 56}... is longer than 2000 characters"),
        ("Hung", "worker", "x", "'x' is not node/index"),
        ("Hung", "worker", "n0/1\n", r"'n0/1\n' is not node/index"),
        ("Hung", "worker", f"n0/{10**9}", "'n0/1000000000' is not node/index"),
    ],
)
def test_a_report_out_of_its_bounds_is_refused_by_field_and_value(
    kind: str, field: str, value: object, problem: str
) -> None:
    unpack(body_of(kind))
    with pytest.raises(CodecError) as caught:
        unpack(body_of(kind, **{field: value}))
    assert caught.value.field == f"reports[0].{field}"
    assert problem in caught.value.problem
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("field", ["plan", "incarnation", "first", "seen"])
@pytest.mark.parametrize("value", [-1, 2**53 + 1, 2**63, 10**400, 1.5, True, None, "1"])
def test_a_number_of_a_message_is_whole_and_bounded(field: str, value: object) -> None:
    with pytest.raises(CodecError, match=f"^{field}: "):
        unpack(json.dumps({**GOOD, field: value}).encode())


def test_no_more_than_10_000_reports_come_at_once() -> None:
    ready = [{"type": "Ready"}] * 10_001
    unpack(json.dumps({**GOOD, "reports": ready[1:]}).encode())
    with pytest.raises(CodecError, match=r"^reports: \[.* has more than 10000 items$"):
        unpack(json.dumps({**GOOD, "reports": ready}).encode())


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[" * 100_000, "is not JSON"),
        (b'{"type":"Reports","x":' + b"[" * 100_000, "is not JSON"),
        (b'{"type":"Reports","job":"\xff"}', "it is not UTF-8"),
        (b'{"type":"Reports","first":NaN}', "NaN is not a JSON value"),
        (b"9" * 10_000, "is not JSON"),
        (
            b'{"type":"Reports","job":"\\ud800","worker":"n0/0","plan":1,"first":0}',
            "is not valid JSON: unexpected end of escaped utf-16 surrogate pair",
        ),
    ],
)
def test_what_would_break_a_parser_is_refused_like_anything_else(body: bytes, message: str) -> None:
    with pytest.raises(CodecError) as caught:
        unpack(body)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 200


def test_an_unknown_field_with_a_strange_name_is_shown_in_one_short_line() -> None:
    with pytest.raises(CodecError) as caught:
        unpack(json.dumps({**GOOD, "a\nb" + "c" * 1000: 1}).encode())
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


plain_values: st.SearchStrategy[typing.Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-1e9, 1e9) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
fields = st.sampled_from([*Reports.__struct_fields__, *Orders.__struct_fields__, "type", "x\n"])


def refusal(body: bytes) -> CodecError | None:
    try:
        unpack(body)
    except CodecError as problem:
        return problem
    return None


@given(st.dictionaries(fields, plain_values))
def test_any_fields_give_a_message_or_one_line_of_complaint(plain: dict[str, object]) -> None:
    problem = refusal(json.dumps({**GOOD, **plain}).encode())
    if problem is not None:
        assert "\n" not in str(problem)
        assert len(str(problem)) < 400


@given(st.sampled_from(sorted(HONEST)), st.data())
def test_any_value_of_a_report_is_taken_or_refused_by_the_name_of_its_field(
    kind: str, data: st.DataObject
) -> None:
    field = data.draw(st.sampled_from(getattr(m, kind).__struct_fields__))
    problem = refusal(body_of(kind, **{field: data.draw(plain_values)}))
    if problem is not None:
        assert problem.field.startswith(f"reports[0].{field}")


def test_a_wrong_value_that_is_hidden_by_a_second_field_of_its_name_is_refused() -> None:
    bad = [{"type": "Ready"}, {"type": "Leaving", "done": 7}]
    body = json.dumps({**GOOD, "reports": bad})[:-1] + ',"reports":[]}'
    with pytest.raises(CodecError, match=r"^reports\[1\]\.done: None is not true or false$"):
        unpack(body.encode())


def test_each_of_two_fields_with_one_name_is_checked() -> None:
    """JSON allows it; the last one counts, and neither may be out of its bounds."""
    twice = json.dumps(GOOD)[:-1] + ',"first":%s}'
    assert unpack((twice % "7").encode()) == Reports(job="a", worker="n0/0", plan=1, first=7)
    with pytest.raises(CodecError, match=r"^first: -1 is not at least 0$"):
        unpack((twice % "-1").encode())
    with pytest.raises(CodecError):
        unpack((json.dumps({**GOOD, "first": -1})[:-1] + ',"first":0}').encode())


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        (math.nan, "nan"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (1e31, "inf"),
        (-1e31, "-inf"),
        (0.5, 0.5),
        (None, None),
    ],
)
def test_a_loss_that_diverged_arrives_as_a_word(value: float | None, sent: object) -> None:
    report = m.Epoch(epoch=1, steps=2, samples=8, loss=as_measure(value))
    message = Reports(job="a", worker="n0/0", plan=1, first=0, reports=(report,))
    assert unpack(pack(message)) == message
    assert json.loads(pack(message))["reports"][0].get("loss") == sent


def test_any_text_can_be_sent() -> None:
    said = m.SwitchFailed(as_text("\ud800" * 5000))
    message = Reports(job="a", worker="n0/0", plan=1, first=0, reports=(said,))
    assert unpack(pack(message)) == message
