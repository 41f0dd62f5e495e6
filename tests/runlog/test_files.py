"""Run logs as files: what is written is read, and damage is named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ones.core import Allocation, Cluster, Generation, Gpu, Job, JobId, Plan
from ones.core import events as ev
from ones.core.cluster import NodeId
from ones.core.job import EndReason, Forecast, SwitchCost
from ones.core.plan import Finish, Prepare, Rescale, Start, Stop, Withdraw
from ones.errors import InvalidFileError, WorldError
from ones.runlog import VERSION, Entry, Header, LogWriter, RunLog, decode, encode
from tests import strategies

HEADER = Header(
    version=VERSION,
    software="0",
    policy="fifo",
    seed=7,
    settings={"backfill": True},
    nodes=tuple(Cluster.of(6, 4).nodes.values()),
    switch_cost=SwitchCost(1.5, 20.0),
    workload="paper",
    mechanism="checkpoint",
)
GPU = Gpu(NodeId("n0"), 1)
A, B = JobId("a"), JobId("b")
HERE = Allocation.even([GPU], 32)
ENTRIES: list[Entry] = [
    ev.JobSubmitted(1.0, Job(id=A, submitted_at=0.5, requested_gpus=2, requested_batch=64)),
    Plan(number=1, at=1.0, actions=(Start(A, HERE, 32),), notes={A: "its turn: ½ → 1 GPU"}),
    ev.WorkerReady(2.0, A, Generation(1), GPU),
    Plan(
        number=2,
        at=2.0,
        actions=(Rescale(A, HERE), Prepare(B, HERE), Withdraw(B), Stop(A)),
        forecasts={A: Forecast(10.0, 5.0, float("inf"))},
    ),
    Plan(number=3, at=2.0, actions=(Finish(A, EndReason.CONVERGED, "target"),)),
    ev.NodeDown(3.25, NodeId("n0")),
]

entries: st.SearchStrategy[Entry] = strategies.events | strategies.plans
headers = st.builds(
    Header,
    version=st.just(VERSION),
    software=strategies.names,
    policy=strategies.names,
    seed=st.integers(),
    settings=st.dictionaries(strategies.names, st.booleans() | st.integers() | st.text()),
    nodes=st.lists(strategies.nodes, unique_by=lambda node: node.id, max_size=4).map(tuple),
    switch_cost=st.builds(SwitchCost, st.floats(0, 100), st.floats(0, 100)),
    workload=st.text(),
    mechanism=strategies.names,
)


def write(path: Path, entries: Sequence[Entry], header: Header = HEADER) -> Path:
    with LogWriter(path, header) as log:
        for entry in entries:
            log(entry)
    return path


@given(entries)
def test_an_entry_is_one_line_that_reads_back_the_same(entry: Entry) -> None:
    line = encode(entry)
    assert "\n" not in line
    assert decode(line) == entry
    assert encode(decode(line)) == line


@settings(max_examples=50)
@given(headers, st.lists(entries, max_size=10))
def test_any_events_and_plans_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, header: Header, written: list[Entry]
) -> None:
    log = RunLog(write(tmp_path_factory.mktemp("log") / "run.jsonl", written, header))
    assert log.header == header
    assert list(log) == written
    assert list(log) == written  # a log may be read again
    assert not log.cut_off


def test_equal_entries_give_equal_bytes(tmp_path: Path) -> None:
    once, again = write(tmp_path / "a.jsonl", ENTRIES), write(tmp_path / "b.jsonl", ENTRIES)
    assert once.read_bytes() == again.read_bytes()


def test_lines_come_with_their_numbers_and_texts(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", ENTRIES)
    texts = path.read_text().splitlines()
    found = list(RunLog(path).lines())
    assert [number for number, _, _ in found] == list(range(2, len(ENTRIES) + 2))
    assert [text for _, text, _ in found] == texts[1:]
    assert [entry for _, _, entry in found] == ENTRIES


def test_reading_may_begin_after_any_line(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    places = []
    with LogWriter(path, HEADER) as log:
        for entry in ENTRIES:
            places.append((log.tell(), log.entries + 1))
            log(entry)
    for i, (offset, number) in enumerate(places):
        found = list(RunLog(path).lines(offset, number))
        assert [entry for _, _, entry in found] == ENTRIES[i:]
        assert found[0][0] == i + 2


def test_a_log_that_was_cut_off_at_any_byte_is_read_up_to_its_last_whole_line(
    tmp_path: Path,
) -> None:
    whole = write(tmp_path / "whole.jsonl", ENTRIES).read_bytes()
    path = tmp_path / "cut.jsonl"
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        lines = whole[:cut].count(b"\n")
        if lines == 0:
            with pytest.raises(InvalidFileError, match=r"cut\.jsonl"):
                RunLog(path)
            continue
        log = RunLog(path)
        assert list(log) == ENTRIES[: lines - 1]
        assert log.cut_off == (not whole[:cut].endswith(b"\n"))


def test_what_was_written_before_a_failure_is_kept(tmp_path: Path) -> None:
    def run_and_fail() -> None:
        with LogWriter(tmp_path / "run.jsonl", HEADER) as log:
            log(ENTRIES[0])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        run_and_fail()
    assert list(RunLog(tmp_path / "run.jsonl")) == ENTRIES[:1]


DAMAGE = [
    ("garbage", "3: 'garbage' is not JSON: Expecting value at column 1"),
    ("", "3: '' is not JSON: Expecting value at column 1"),
    ("[1]", "3: [1] is not an object"),
    ('{"at":1.0}', "3: type: None is not one of Header, Plan, JobSubmitted, "),
    ('{"type":"System","at":1.0}', "3: type: 'System' is not one of Header, Plan, "),
    ('{"type":"Woke"}', "3: at: is missing"),
    ('{"type":"Woke","at":"noon"}', "3: at: 'noon' is not a number"),
    ('{"type":"Woke","at":NaN}', '3: \'{"type":"Woke","at":NaN}\' is not JSON'),
    ('{"type":"Woke","at":1.0,"by":"cat"}', "3: by: Woke has no such field ('cat')"),
    ('{"type":"NodeUp","at":1.0,"node":"n0","gpus":2.5}', "3: gpus: 2.5 is not a whole number"),
    (
        '{"type":"JobEnded","at":1.0,"job":"a","reason":"bored"}',
        "3: reason: 'bored' is not one of converged, finished, failed, cancelled",
    ),
    (
        '{"type":"JobSubmitted","at":1.0,"job":{"id":"a","submitted_at":1.0,"min_gpus":0}}',
        "3: job.min_gpus: 0 is not at least 1",
    ),
    (
        '{"type":"Plan","number":1,"at":1.0,"actions":[{"type":"Explode","job":"a"}]}',
        "3: actions[0].type: 'Explode' is not one of Start, Rescale, Prepare, Withdraw, Stop, ",
    ),
    (
        '{"type":"Plan","number":1,"at":1.0,"actions":[{"type":"Start","job":"a",'
        '"allocation":{"workers":[]}}]}',
        "3: actions[0].allocation: an allocation has at least one worker",
    ),
]


@pytest.mark.parametrize(("line", "message"), DAMAGE)
def test_damage_in_the_middle_is_refused_with_file_line_field_and_value(
    tmp_path: Path, line: str, message: str
) -> None:
    path = write(tmp_path / "run.jsonl", ENTRIES)
    lines = path.read_text().splitlines()
    lines[2] = line
    path.write_text("\n".join(lines) + "\n")
    log = RunLog(path)
    with pytest.raises(InvalidFileError) as caught:
        list(log)
    assert str(caught.value).startswith(f"{path}:{message}")
    assert "\n" not in str(caught.value)


def test_a_line_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", ENTRIES)
    path.write_bytes(path.read_bytes().replace(b"its turn", b"\xbd"))
    with pytest.raises(InvalidFileError, match=f"^{path}:3: is not text in UTF-8$"):
        list(RunLog(path))


def test_a_second_header_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", ENTRIES[:1])
    path.write_text(path.read_text() * 2)
    with pytest.raises(
        InvalidFileError, match=f"^{path}:3: a Header is valid on the first line only$"
    ):
        list(RunLog(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", ": is empty: a run log begins with a header"),
        (b"\n", ": is empty: a run log begins with a header"),
        (b'{"type":"Hea', ":1: the header is cut off"),
        (b"at,id,model\n1,a,b\n", ":1: 'at,id,model' is not JSON: Expecting value at column 1"),
        (b"\x89PNG\r\n\x1a\n", ":1: is not text in UTF-8"),
        (b'{"type":"Woke","at":1.0}\n', ":1: Woke is not the header of a run log"),
    ],
)
def test_what_is_no_run_log_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    with pytest.raises(InvalidFileError) as caught:
        RunLog(path)
    assert str(caught.value) == f"{path}{message}"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (f'"version":{VERSION}', '"version":99', "version: 99 is not supported; this version"),
        ('"seed":7', '"seed":"x"', "seed: 'x' is not a whole number"),
        ('"policy":"fifo",', "", "policy: is missing"),
        ('"gpus":4', '"gpus":0', "nodes[0].gpus: 0 is not at least 1"),
        ('"n1"', '"n0"', "nodes: node n0 is in the cluster twice"),
    ],
)
def test_a_wrong_header_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = write(tmp_path / "run.jsonl", ENTRIES)
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(InvalidFileError) as caught:
        RunLog(path)
    assert str(caught.value).startswith(f"{path}:1: {message}")


def test_a_file_that_cannot_be_read_is_named_with_the_cause(tmp_path: Path) -> None:
    with pytest.raises(InvalidFileError, match="nope: cannot be read: No such file or directory"):
        RunLog(tmp_path / "nope")
    with pytest.raises(InvalidFileError, match="cannot be read: Is a directory"):
        RunLog(tmp_path)


def test_a_place_that_cannot_be_written_is_the_world_s_fault(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match=r"run\.jsonl: cannot be written: No such file"):
        LogWriter(tmp_path / "nowhere" / "run.jsonl", HEADER)


def test_a_full_disk_is_the_world_s_fault() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    log = LogWriter(full, HEADER)
    with pytest.raises(WorldError, match="/dev/full: No space left on device"):
        log.flush()
    with pytest.raises(WorldError, match="/dev/full: No space left on device"):
        log.close()
