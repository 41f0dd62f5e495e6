"""Traces as CSV: what is written is read, and a malformed row is one line to the user."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ones.core import Cluster, Job, JobId
from ones.core import events as ev
from ones.core.cluster import NodeId
from ones.errors import InvalidFileError, UserError
from ones.stopping import StopRule
from ones.workload import (
    COLUMNS,
    Incident,
    Trace,
    TraceJob,
    Training,
    check_fits,
    generate,
    paper_numbers,
    read_trace,
    write_trace,
)
from tests import strategies

KINDS = paper_numbers().kinds
words = st.text('ab",;\n é#', max_size=6).map(str.strip)
ids = words.filter(bool)
at = st.floats(0, 1e9, allow_nan=False)


@st.composite
def trace_jobs(draw: st.DrawFn) -> TraceJob:
    """Any job that a trace can tell of."""
    kind = KINDS[draw(st.sampled_from(sorted(KINDS)))]
    epochs = draw(st.none() | st.integers(1, 100))
    target = st.floats(0, kind.accuracy_limit, exclude_max=True)
    least = draw(st.integers(1, 4))
    base = draw(st.integers(1, 512))
    return TraceJob(
        Job(
            id=JobId(draw(ids)),
            submitted_at=draw(at),
            kind=draw(words | st.just(kind.name)),
            owner=draw(words),
            priority=draw(strategies.finite),
            min_gpus=least,
            max_gpus=draw(st.none() | st.integers(least, 64)),
            requested_gpus=draw(st.integers(1, 8)),
            requested_batch=draw(st.integers(1, 4096)),
            min_batch=draw(st.none() | st.integers(1, 64)),
            max_batch=draw(st.none() | st.integers(64, 4096)),
            epochs=epochs,
            stop=StopRule(
                target_accuracy=draw(target if epochs is None else st.none() | target),
                target_epochs=draw(st.integers(1, 20)),
                patience=draw(st.none() | st.integers(1, 20)),
                max_epochs=draw(st.integers(1, 2000) | st.just(epochs)),
            ),
        ),
        Training(
            kind=kind.name,
            dataset_size=draw(st.integers(base, 10**6)),
            classes=draw(st.integers(1, 1000)),
            base_batch=base,
            length=draw(st.floats(1e-3, 1e3)),
        ),
    )


nodes = ids.map(NodeId)
incidents: st.SearchStrategy[Incident] = st.one_of(
    st.builds(ev.CancelRequested, at, ids.map(JobId), st.just("the trace")),
    st.builds(ev.NodeDown, at, nodes),
    st.builds(ev.NodeDraining, at, nodes),
    st.builds(ev.NodeUp, at, nodes, st.integers(1, 16)),
)
traces = st.builds(
    Trace.of,
    st.just("trace.csv"),
    st.lists(trace_jobs(), min_size=1, max_size=5, unique_by=lambda entry: entry.job.id),
    st.lists(incidents, max_size=4),
)


def text_of(trace: Trace) -> str:
    file = StringIO(newline="")
    write_trace(trace, file)
    return file.getvalue()


def read(path: Path, text: str | bytes) -> Trace:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_trace(path)


@settings(max_examples=80, deadline=None)
@given(traces)
def test_any_trace_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, trace: Trace
) -> None:
    path = tmp_path_factory.mktemp("trace") / "trace.csv"
    again = read(path, text_of(trace))
    assert again == trace
    assert text_of(again) == text_of(trace)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_generated_trace_is_read_as_it_was_written(tmp_path: Path, seed: int) -> None:
    trace = generate(jobs=120, seed=seed, gap=12.0)
    again = read(tmp_path / "trace.csv", text_of(trace))
    assert (again.jobs, again.incidents) == (trace.jobs, trace.incidents)


def test_only_columns_that_say_something_are_written() -> None:
    header = text_of(generate(jobs=3, seed=0, gap=12.0)).splitlines()[0].split(",")
    assert {"owner", "node", "event", "priority"}.isdisjoint(header)
    assert header == [column.name for column in COLUMNS if column.name in header]


def test_a_row_needs_no_more_than_its_time_its_name_and_its_model(tmp_path: Path) -> None:
    [entry] = read(tmp_path / "t.csv", "at,id,model\n5,a,bert-cola\n").jobs
    kind = KINDS["bert-cola"]
    assert entry.job.submitted_at == 5.0
    assert entry.job.kind == "bert-cola"
    assert entry.job.requested_batch == kind.base_batch == entry.training.base_batch
    assert entry.job.stop == StopRule(target_accuracy=kind.target_accuracy, target_epochs=10)
    assert entry.training.dataset_size in kind.sizes


def test_epochs_take_the_place_of_the_model_s_target(tmp_path: Path) -> None:
    [entry] = read(tmp_path / "t.csv", "at,id,model,epochs\n5,a,bert-cola,3\n").jobs
    assert entry.job.stop.target_accuracy is None
    assert entry.job.epochs == entry.job.stop.max_epochs == 3


def test_columns_may_come_in_any_order_and_blanks_between_rows(tmp_path: Path) -> None:
    text = "id , model, at\nb,bert-cola, 2\n\n , ,\na,bert-mrpc,7\n"
    trace = read(tmp_path / "t.csv", text)
    assert [entry.job.id for entry in trace.jobs] == ["b", "a"]


def test_what_spreadsheets_write_is_read(tmp_path: Path) -> None:
    """A mark at the start, and lines that end in two characters."""
    trace = read(tmp_path / "t.csv", b'\xef\xbb\xbf"at","id","model"\r\n1,"a","bert-cola"\r\n')
    assert [entry.job.id for entry in trace.jobs] == ["a"]


HEADER = "event,at,id,model,gpus,epochs,node\n"
GOOD = "submit,1,a,bert-cola,1,,\n"
#: text of the file, and the error message after the file's name
MALFORMED = {
    "empty file": ("", ": is empty: a trace begins with a header"),
    "header only": (HEADER, ": holds no job"),
    "incidents only": (HEADER + "node-down,1,,,,,n0\n", ": holds no job"),
    "unknown column": (
        "at,id,modle\n1,a,b\n",
        ":1: unknown column 'modle'; did you mean 'model'?",
    ),
    "column twice": ("at,id,model,at\n", ":1: at: appears twice"),
    "no column at": ("id,model\na,bert-cola\n", ":1: at: the column is missing"),
    "missing at": (HEADER + "submit,,a,bert-cola,1,,\n", ":2: at: is missing"),
    "unordered times": (
        HEADER + "submit,7,a,bert-cola,1,,\nsubmit,2,b,bert-cola,1,,\n",
        ":3: at: 2 is below 7 of the row before; sort rows by time",
    ),
    "negative at": (HEADER + "submit,-1,a,bert-cola,1,,\n", ":2: at: -1 is not at least 0"),
    "nan at": (HEADER + "submit,nan,a,bert-cola,1,,\n", ":2: at: 'nan' is not a number"),
    "infinite at": (HEADER + "submit,inf,a,bert-cola,1,,\n", ":2: at: 'inf' is not a number"),
    "text for a number": (
        HEADER + "submit,soon,a,bert-cola,1,,\n",
        ":2: at: 'soon' is not a number",
    ),
    "text for a whole number": (
        HEADER + "submit,1,a,bert-cola,many,,\n",
        ":2: gpus: 'many' is not a whole number",
    ),
    "fraction for a whole number": (
        HEADER + "submit,1,a,bert-cola,1.5,,\n",
        ":2: gpus: '1.5' is not a whole number",
    ),
    "no GPU": (HEADER + "submit,1,a,bert-cola,0,,\n", ":2: gpus: 0 is not at least 1"),
    "too many GPUs": (
        HEADER + "submit,1,a,bert-cola,1048577,,\n",
        ":2: gpus: '1048577' is not within 1.04858e+06",
    ),
    "a number of many digits": (
        HEADER + f"submit,1,a,bert-cola,1,{'9' * 400},\n",
        f":2: epochs: '{'9' * 56}... is not within 1e+12",
    ),
    "a name that is too long": (
        HEADER + f"submit,1,{'a' * 301},bert-cola,1,,\n",
        f":2: id: '{'a' * 56}... is longer than 300 characters",
    ),
    "no epoch": (HEADER + "submit,1,a,bert-cola,1,0,\n", ":2: epochs: 0 is not at least 1"),
    "missing id": (HEADER + "submit,1,,bert-cola,1,,\n", ":2: id: is missing"),
    "missing model": (HEADER + "submit,1,a,,1,,\n", ":2: model: is missing"),
    "duplicate id": (
        HEADER + GOOD + "submit,2,a,bert-mrpc,1,,\n",
        ":3: id: 'a' appears twice",
    ),
    "unknown model": (
        HEADER + GOOD + "submit,1,b,bert-colla,1,,\n",
        ":3: model: unknown model 'bert-colla'; did you mean 'bert-cola'?",
    ),
    "too few cells": (HEADER + "submit,1,a\n", ":2: 3 values under 7 columns"),
    "too many cells": (HEADER + "submit,1,a,bert-cola,1,,,x\n", ":2: 8 values under 7 columns"),
    "unknown event": (
        HEADER + GOOD + "node-dwn,1,,,,,n0\n",
        ":3: event: unknown event 'node-dwn'; did you mean 'node-down'?",
    ),
    "node event without node": (
        HEADER + GOOD + "node-down,1,,,,,\n",
        ":3: node: is missing for node-down",
    ),
    "cancel without job": (HEADER + GOOD + "cancel,1,,,,,\n", ":3: id: is missing for cancel"),
    "node without GPUs": (
        HEADER + GOOD + "node-up,1,,,0,,n0\n",
        ":3: gpus: 0 is not at least 1",
    ),
    "negative time of an incident": (
        HEADER + GOOD + "node-down,-3,,,,,n0\n",
        ":3: at: -3 is not at least 0",
    ),
    "unreachable target": (
        "at,id,model,target_accuracy\n1,a,bert-cola,0.99\n",
        ":2: target_accuracy: 0.99 is never reached: bert-cola ends at",
    ),
    "negative target": (
        "at,id,model,target_accuracy\n1,a,bert-cola,-0.5\n",
        ":2: target_accuracy -0.5 is not in 0..1",
    ),
    "base batch above the data": (
        "at,id,model,base_batch,dataset_size\n1,a,bert-cola,100,99\n",
        ":2: base_batch 100 is more than dataset_size 99",
    ),
    "base batch of nothing": (
        "at,id,model,base_batch\n1,a,bert-cola,0\n",
        ":2: base_batch: 0 is not at least 1",
    ),
    "batch of nothing": ("at,id,model,batch\n1,a,bert-cola,0\n", ":2: batch: 0 is not at least 1"),
    "no data": (
        "at,id,model,dataset_size\n1,a,bert-cola,0\n",
        ":2: dataset_size: 0 is not at least 1",
    ),
    "most below least": (
        "at,id,model,min_gpus,max_gpus\n1,a,bert-cola,4,2\n",
        ":2: job a: max_gpus 2 is less than min_gpus 4",
    ),
    "length of nothing": (
        "at,id,model,length\n1,a,bert-cola,0\n",
        ":2: length 0.0 is not above 0",
    ),
    "a quote that never ends": (
        HEADER + GOOD + 'submit,2,"b,bert-cola,1,,\nsubmit,3,c,bert-cola,1,,\n',
        ":4: is not CSV: unexpected end of data",
    ),
    "a run log": (
        '{"type":"Header","version":1}\n',
        ":1: is JSON, as run logs are; a trace is CSV",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_trace_is_refused_with_file_line_field_and_value(
    tmp_path: Path, case: str
) -> None:
    text, message = MALFORMED[case]
    path = tmp_path / "trace.csv"
    with pytest.raises(InvalidFileError) as caught:
        read(path, text)
    assert str(caught.value).startswith(f"{path}{message}")
    assert "\n" not in str(caught.value)


def test_a_trace_that_is_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidFileError, match=r"trace\.csv: is not text in UTF-8$"):
        read(tmp_path / "trace.csv", b"at,id,model\n1,\xe9,bert-cola\n")


def test_a_trace_that_cannot_be_read_is_named_with_the_cause(tmp_path: Path) -> None:
    with pytest.raises(InvalidFileError, match=r"no\.csv: cannot be read: No such file"):
        read_trace(tmp_path / "no.csv")
    with pytest.raises(InvalidFileError, match="cannot be read: Is a directory"):
        read_trace(tmp_path)


@given(st.text(max_size=60))
def test_any_text_is_a_trace_or_one_line_to_the_user(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.csv"
    with pytest.raises(InvalidFileError) as caught:
        read(path, (HEADER + text).encode("utf-8", "surrogatepass"))
    assert str(caught.value).startswith(str(path))


def with_incidents(*incidents: Incident) -> Trace:
    return Trace.of("t.csv", generate(jobs=1, seed=0, gap=1.0).jobs, incidents)


@pytest.mark.parametrize(
    ("incident", "message"),
    [
        (ev.NodeDown(1.0, NodeId("n9")), r"node n9 is not in the cluster \(n0, n1, \.\.\.\)"),
        (ev.NodeDraining(1.0, NodeId("n9")), "node n9 is not in the cluster"),
        (ev.CancelRequested(1.0, JobId("z")), "cancel of job z, which never arrives"),
        (
            ev.NodeUp(1.0, NodeId("n0"), 8),
            "node n0 has 4 GPUs and would come up again with 8",
        ),
    ],
)
def test_an_incident_that_cannot_befall_the_cluster_is_refused(
    incident: Incident, message: str
) -> None:
    with pytest.raises(UserError, match=f"^t.csv: {message}"):
        check_fits(with_incidents(incident), Cluster.of(8, 4))


def test_a_node_may_come_new_and_come_back_with_other_gpus() -> None:
    n0, n9 = NodeId("n0"), NodeId("n9")
    trace = with_incidents(
        ev.NodeDown(1.0, n0),
        ev.NodeUp(2.0, n0, 8),
        ev.NodeUp(2.0, n9, 2),
        ev.NodeDraining(3.0, n9),
        ev.NodeUp(4.0, n9, 2),
    )
    check_fits(trace, Cluster.of(8, 4))


def test_a_job_larger_than_the_cluster_is_refused(tmp_path: Path) -> None:
    trace = read(tmp_path / "t.csv", "at,id,model,gpus\n1,a,bert-cola,8\n")
    with pytest.raises(UserError, match="job a: requested_gpus 8 is more than the 4 GPUs"):
        check_fits(trace, Cluster.of(4))
    trace = read(tmp_path / "t.csv", "at,id,model,min_gpus\n1,a,bert-cola,8\n")
    with pytest.raises(UserError, match="job a: min_gpus 8 is more than the 4 GPUs"):
        check_fits(trace, Cluster.of(4))


def test_every_column_says_what_it_is() -> None:
    assert all(column.help for column in COLUMNS)
    assert len({column.name for column in COLUMNS}) == len(COLUMNS)


def test_a_job_for_which_no_gpu_is_left_is_refused_with_its_line(tmp_path: Path) -> None:
    """Before the loss of a node it would fit; so it does if the node comes back."""
    text = (
        "event,at,id,model,gpus,node\n"
        "submit,0,a,vgg16-imagenet,8,\n"
        "node-down,5,,,,n1\n"
        "submit,9,b,vgg16-imagenet,8,\n"
    )
    trace = read(tmp_path / "t.csv", text)
    with pytest.raises(InvalidFileError, match=r":4: gpus: job b: requested_gpus 8 is more than"):
        check_fits(trace, Cluster.of(8, 4))
    check_fits(read(tmp_path / "t.csv", text + "node-up,20,,,4,n1\n"), Cluster.of(8, 4))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("node-down,5,,,,n9", ":3: node: node n9 is not in the cluster"),
        ("cancel,5,b,,,", ":3: id: cancel of job b, which never arrives"),
        ("node-up,5,,,2,n0", ":3: gpus: node n0 has 4 GPUs and would come up again with 2"),
    ],
)
def test_an_incident_of_a_file_is_refused_with_its_line_and_field(
    tmp_path: Path, row: str, message: str
) -> None:
    text = f"event,at,id,model,gpus,node\nsubmit,0,a,vgg16-imagenet,1,\n{row}\n"
    with pytest.raises(InvalidFileError, match=message):
        check_fits(read(tmp_path / "t.csv", text), Cluster.of(8, 4))
