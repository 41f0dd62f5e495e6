"""What the log holds is read as it was written: by this version and by earlier ones."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from docs.reference.events import EVENT_EXAMPLES
from ones.control.live.jobs import LAST
from ones.core import Allocation, Generation, Gpu, Job, JobId, Plan
from ones.core import events as ev
from ones.core.cluster import Node, NodeId
from ones.core.job import Configuration, EndReason, Forecast, StepTime, SwitchCost
from ones.core.plan import Finish, Prepare, Rescale, Start, Stop, Withdraw
from ones.core.state import State
from ones.runlog import VERSION, Entry, Header, decode, encode
from ones.runlog.encoding import decode_outcome, decode_snapshot, encode_saved
from ones.stopping import StopRule
from ones.wire.decoding import CodecError

DATA = Path(__file__).parent.parent / "data"
A, B, N0 = JobId("a"), JobId("b"), NodeId("n0")
HERE = Allocation.even([Gpu(N0, 0), Gpu(N0, 1)], 9, 4)
G = Generation(2, 1)

#: events of later versions
LATER = ev.UNOBSERVED_EVENTS | {
    ev.FairShareSet,
    ev.JobChanged,
    ev.JobHeld,
    ev.JobReleased,
    ev.TrackerLinked,
    ev.TrainingRestarted,
}


def _without_later_fields(event: ev.Event) -> ev.Event:
    if isinstance(event, ev.ThroughputMeasured):
        return replace(event, first_step_extra_seconds=None)
    return event


#: what version 0.1.0 wrote into log-of-0.1.0.jsonl
WRITTEN: list[Entry | Header] = [
    Header(
        version=VERSION,
        software="0.1.0",
        policy="fifo",
        seed=7,
        settings={"backfill": True},
        nodes=(Node(N0, 4), Node(NodeId("n1"), 2, position=1, groups=(0, 1))),
        switch_cost=SwitchCost(1.5, 20.0),
        workload="paper",
        mechanism="restart",
        changed_at=3.0,
    ),
    *(_without_later_fields(event) for event, _ in EVENT_EXAMPLES if type(event) not in LATER),
    ev.EpochFinished(
        at=1.0,
        job=A,
        generation=G,
        epoch=1,
        samples=5,
        steps=1,
        loss=math.nan,
        accuracy=math.inf,
        gradient_noise=-math.inf,
    ),
    ev.WorkerLost(1.0, A, G, Gpu(N0, 0), "odd text: \ud800 and nan and 'inf'"),
    ev.OwnerLimitSet(1.0, "ada", None),
    ev.PriorityChanged(1e16, A, 0.0),
    ev.JobSubmitted(
        2.0,
        Job(
            id=JobId("nan"),
            submitted_at=2.0,
            kind="inf",
            priority=1.5,
            stop=StopRule(patience=3),
            command=("nan",),
        ),
    ),
    Plan(
        number=2,
        at=2.0,
        actions=(
            Start(A, HERE, 9),
            Rescale(A, HERE),
            Prepare(B, HERE),
            Withdraw(B),
            Stop(A),
            Finish(A, EndReason.CONVERGED, "target"),
        ),
        notes={A: "½ GPU"},
        forecasts={
            A: Forecast(10.0, 5.0, math.inf),
            JobId("inf"): Forecast(math.nan, -math.inf, 1e16),
        },
    ),
]
LINES = (DATA / "log-of-0.1.0.jsonl").read_text().splitlines()


def test_nothing_of_the_old_log_is_left_out() -> None:
    assert len(LINES) == len(WRITTEN)


@pytest.mark.parametrize(("line", "entry"), list(zip(LINES, WRITTEN, strict=True)))
def test_what_version_0_1_0_wrote_is_read_as_it_was(line: str, entry: Entry | Header) -> None:
    assert repr(decode(line)) == repr(entry)  # nan is not equal to itself, its text is


@pytest.mark.parametrize("line", LINES)
def test_an_entry_of_version_0_1_0_is_written_again_with_the_same_content(line: str) -> None:
    assert json.loads(encode(decode(line))) == json.loads(line)
    assert encode(decode(encode(decode(line)))) == encode(decode(line))


def test_a_snapshot_of_version_0_1_0_gives_the_state_that_was_there() -> None:
    saved = json.loads((DATA / "snapshot-of-0.1.0.json").read_text())
    state = State.restored(decode_snapshot(saved["state"]))
    record = state.records[A]
    assert record.profile == {
        Configuration(2, 1, 64): StepTime(0.5, 3),
        Configuration(2, 1, 32): StepTime(0.25, 3),
    }
    assert all(isinstance(c, Configuration) for c in record.profile)
    assert record.occupied == {Gpu(N0, 0), Gpu(N0, 1)}
    assert record.loss is not None
    assert math.isnan(record.loss)
    again = json.loads(json.dumps(encode_saved(state.snapshot())))
    (ended,), (was_ended,) = again.pop("ended"), saved["state"].pop("ended")
    assert decode_outcome(ended) == decode_outcome(was_ended)
    for plain in again["records"]:
        plain.pop("phase", None)  # not in snapshots of 0.1.0: the other fields imply it
    assert again == saved["state"]
    assert [decode_outcome(plain) for plain in saved["outcomes"]] == [state.ended[B]]


def test_numbers_of_numpy_are_numbers() -> None:
    measured = ev.EpochFinished(
        at=np.float64(1.5),
        job=A,
        generation=G,
        epoch=1,
        samples=5,
        steps=1,
        loss=np.float32(0.5),  # type: ignore[arg-type]
    )
    assert decode(encode(measured)) == measured


def test_a_worker_that_an_earlier_controller_left_has_the_last_generation() -> None:
    left = ev.WorkerLeft(1.0, A, LAST, Gpu(N0, 0))
    assert decode(encode(left)) == left


def test_only_entries_go_into_the_log() -> None:
    with pytest.raises(TypeError, match="Stop is not an entry of a run log"):
        encode(Stop(A))  # type: ignore[arg-type]


SPEED = (
    '{"type":"ThroughputMeasured","at":1.0,"job":"a","generation":[1,0],'
    '"configuration":[1,1,32,1],"step_seconds":0.5,"steps":10}'
)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"steps":10', '"steps":0', "steps: 0 is not at least 1"),
        ('"steps":10', '"steps":-1', "steps: -1 is not at least 1"),
        ('"steps":10', f'"steps":{"9" * 400}', f"steps: {'9' * 57}... is more than {2**53}"),
        ('"steps":10', '"steps":"10"', "steps: '10' is not a whole number"),
        ("0.5", "0.0", "step_seconds: 0.0 is not more than 0"),
        ("0.5", '"inf"', "step_seconds: 'inf' is more than 1e+12"),
        ("0.5", '"nan"', "step_seconds: 'nan' is not more than 0"),
        ("0.5", "9" * 400, f"step_seconds: {'9' * 57}... is too large"),
        ("[1,1,32,1]", "[1,1,0,1]", "configuration[2]: 0 is not at least 1"),
        ("[1,1,32,1]", "[1]", "configuration: [1] does not have 3 items"),
        ('"a"', "[" * 100_000, "is not JSON: "),
        ("1.0", "Infinity", "is not JSON: Infinity is not a JSON value"),
    ],
)
def test_a_value_out_of_its_bounds_is_refused_by_name(old: str, new: str, message: str) -> None:
    decode(SPEED)
    with pytest.raises(CodecError) as caught:
        decode(SPEED.replace(old, new, 1))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ("many", "records.profile: 'many' is not a list of pairs"),
        ([[1, 2]], "records.profile: [[1, 2]] is not a list of pairs"),
        ([[[1, 1, 0, 1], [0.5, 3]]], "records[0].profile: Expected `int` >= 1"),
    ],
)
def test_a_damaged_profile_is_refused(profile: object, message: str) -> None:
    saved = json.loads((DATA / "snapshot-of-0.1.0.json").read_text())["state"]
    saved["records"][0]["profile"] = profile
    with pytest.raises(CodecError) as caught:
        decode_snapshot(saved)
    assert str(caught.value).startswith(message)
