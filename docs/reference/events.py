"""events.md: what goes into the core and what comes out of it, with a line of the log for each."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterable

import msgspec
from msgspec import NODEFAULT, structs

from docs.reference.markdown import block, code, page, same, table
from ones import __version__
from ones.core import events as ev
from ones.core import plan as orders
from ones.core.cluster import Gpu, Node, NodeId
from ones.core.job import (
    Configuration,
    Dependency,
    EndReason,
    Forecast,
    Generation,
    Job,
    JobId,
    SwitchCost,
)
from ones.core.plan import Plan
from ones.core.schedule import Allocation, Worker
from ones.runlog import VERSION, Header, encode
from ones.stopping import StopRule
from ones.wire.bounds import FORMS

BERT, NODE = JobId("bert-1"), NodeId("n0")
FIRST = Generation(1)


def _on(*indexes: int, batch: int) -> Allocation:
    return Allocation(tuple(Worker(Gpu(NODE, index), batch) for index in indexes))


#: an example of each event, and when it is sent; recorded entries of version 0.1.0 have the same
EVENT_EXAMPLES: tuple[tuple[ev.Event, str], ...] = (
    (
        ev.JobSubmitted(
            12.5,
            Job(
                id=BERT,
                submitted_at=12.5,
                kind="bert-cola",
                owner="ada",
                command=("python", "train.py"),
                requested_gpus=2,
                requested_batch=128,
                stop=StopRule(target_accuracy=0.8, target_epochs=10),
            ),
        ),
        "A user submitted a job, or a trace has one.",
    ),
    (
        ev.JobDescribed(
            at=17.5,
            job=BERT,
            generation=FIRST,
            dataset_size=8551,
            base_batch=64,
            optimizer="adam",
            parameter_bytes=437_935_112,
            max_local_batch=192,
        ),
        "Sent after the first start, and again when a value has changed. A job that never joins "
        "never sends it.",
    ),
    (
        ev.StepsDone(at=18.9, job=BERT, generation=FIRST, epoch=1, steps=20, samples=2560),
        "Sent at intervals during a long epoch, or to report gradient noise.",
    ),
    (
        ev.EpochFinished(
            at=22.2,
            job=BERT,
            generation=FIRST,
            epoch=1,
            samples=8551,
            steps=67,
            loss=0.51,
            accuracy=0.742,
            first_loss=0.693,
            step_seconds=0.0701,
            gradient_noise=232.0,
        ),
        "Sent at the end of every epoch. Stop rules are applied here.",
    ),
    (
        ev.ThroughputMeasured(
            at=19.0,
            job=BERT,
            generation=FIRST,
            configuration=Configuration(gpus=2, nodes=1, batch=128),
            step_seconds=0.0698,
            steps=20,
            first_step_extra_seconds=0.031,
        ),
        "Sent after enough steps in a configuration to measure its speed.",
    ),
    (
        ev.JobFoundFixed(317.0, BERT, FIRST),
        "The script turned out not to call `ones.join`. The core does not change the job any more.",
    ),
    (
        ev.TrainingRestarted(45.0, BERT, FIRST, 3),
        "All workers died and no checkpoint was found. Earlier epochs do not count any more.",
    ),
    (
        ev.TrackerLinked(21.0, BERT, FIRST, "https://mlflow.example.org/#/experiments/1/runs/5a0"),
        "Sent by `job.link`. The job's page and `ones show` have it.",
    ),
    (
        ev.MemoryLimitLearned(at=40.0, job=BERT, generation=FIRST, max_local_batch=160),
        "A batch did not fit into memory, or the maximum that fits was estimated or has changed.",
    ),
    (
        ev.WorkerReady(17.5, BERT, FIRST, Gpu(NODE, 0)),
        "Sent for every worker of a start, and for joining workers.",
    ),
    (
        ev.WorkerLeft(61.3, BERT, Generation(4), Gpu(NODE, 1)),
        "Sent after `Stop` and `Finish`, for leaving workers of a `Rescale`, and for joining "
        "workers of an order that failed.",
    ),
    (
        ev.WorkerLost(70.0, BERT, Generation(4), Gpu(NODE, 0), "exit code 137"),
        "The process ended without an order to do so.",
    ),
    (ev.Rescaled(62.1, BERT, Generation(4), 0.81), "The answer to `Rescale`; also after a loss."),
    (
        ev.RescaleFailed(62.1, BERT, Generation(4), "a newcomer did not start"),
        "The other answer to `Rescale`, and to `Start`.",
    ),
    (ev.NodeUp(300.0, NodeId("n1"), 4), "A node is new, is back, or is not draining any more."),
    (ev.NodeDraining(80.0, NodeId("n1")), "An operator drains the node: no worker starts there."),
    (ev.NodeDown(95.5, NodeId("n1")), "A node failed or was removed."),
    (
        ev.GpuSetAside(97.0, Gpu(NODE, 2), "5 workers died there in a row"),
        "The GPU is cordoned: another process uses it, workers keep failing there, or an operator "
        "requested it.",
    ),
    (ev.GpuReturned(150.0, Gpu(NODE, 2)), "The GPU may be used again."),
    (ev.CancelRequested(200.0, BERT, "ada"), "A user cancels the job. `Finish` follows."),
    (
        ev.PriorityChanged(90.0, BERT, 5.0),
        "As `JobChanged`, in logs of 0.1.0.",
    ),
    (
        ev.JobChanged(
            at=91.0, job=BERT, by="ada", priority=5.0, max_gpus=4, other=("run time 2.0 h",)
        ),
        "A user changed the job. A job with more GPUs than its maximum gives the others back; one "
        "with fewer than its minimum saves its work and waits.",
    ),
    (ev.JobHeld(92.0, BERT, "ada"), "A user put the job on hold."),
    (
        ev.JobReleased(93.0, BERT, "ada"),
        "A user released the job. Policies also observe it for jobs that the end of another job "
        "unblocked.",
    ),
    (
        ev.JobWarned(94.0, BERT, "idle", "Its GPU has been idle for 30 min: n1/0."),
        "The live service warns the owner of a job. Nothing changes.",
    ),
    (ev.OwnerLimitSet(0.0, "ada", 8), "An operator set or removed a limit."),
    (
        ev.FairShareSet(0.0, 604_800.0, {"ada": 432_000.0}),
        "Sent when the service or a simulation begins with the setting "
        "`fair_share_half_life_hours`, and when it has another value.",
    ),
    (
        ev.JobEnded(205.0, BERT, EndReason.CANCELLED, "cancelled by ada"),
        "The answer to `Finish`; also sent when a script ends by itself or fails permanently.",
    ),
    (
        ev.EntryQuarantined(
            at=206.0,
            entry=311,
            kind="ThroughputMeasured",
            job=BERT,
            reason="`observe` raised ZeroDivisionError: division by zero (speeds.py:88)",
        ),
        "From the service only. Readers of the log skip entry 311; the job fails.",
    ),
    (
        ev.PolicyFailed(
            at=207.0,
            policy="ones",
            reason="`decide` raised KeyError: 'a-1'",
            failures=1,
            retry_at=208.0,
        ),
        "From the service only. The schedule does not change until the policy is called again.",
    ),
    (
        ev.PolicyReplaced(
            at=240.0, policy="fifo", reason="5 failures in a row: `decide` raised KeyError"
        ),
        "From the service only: after five consecutive failures, and when a restart restores the"
        " configured policy.",
    ),
    (ev.Woke(240.0), "Sent at the time that the policy set in `wake_at`, or later."),
)

ACTION_EXAMPLES: tuple[tuple[orders.Action, str], ...] = (
    (
        orders.Start(BERT, _on(0, 1, batch=64)),
        "`WorkerReady` for every worker, or `RescaleFailed`",
    ),
    (
        orders.Rescale(BERT, _on(0, 1, 2, 3, batch=48), 64),
        "`Rescaled`, or `RescaleFailed`; `WorkerLeft` for every leaving worker",
    ),
    (orders.Prepare(BERT, _on(0, 1, 2, 3, batch=48)), "nothing"),
    (orders.Withdraw(BERT), "nothing"),
    (orders.Stop(BERT), "`WorkerLeft` for every worker"),
    (
        orders.Finish(BERT, EndReason.CONVERGED, "target"),
        "`JobEnded`, then `WorkerLeft` for every worker",
    ),
)

#: types of values inside events and plans
VALUES = (
    Job,
    Dependency,
    StopRule,
    Generation,
    Gpu,
    Configuration,
    Allocation,
    Worker,
    Forecast,
    SwitchCost,
    Node,
)


def events_page() -> str:
    same("events", _names(type(e) for e, _ in EVENT_EXAMPLES), _names(typing.get_args(ev.Event)))
    actions = typing.get_args(orders.Action)
    same("actions", _names(type(a) for a, _ in ACTION_EXAMPLES), _names(actions))
    header = Header(
        version=VERSION,
        software=__version__,
        policy="fifo",
        seed=1,
        nodes=(Node(NODE, 4), Node(NodeId("n1"), 4, position=1)),
        switch_cost=SwitchCost(1.0, 25.0),
        workload="paper",
        mechanism="elastic",
    )
    plan = Plan(
        number=1,
        at=12.5,
        actions=(ACTION_EXAMPLES[0][0],),
        notes={BERT: "its turn: 2 GPUs on 1 node"},
        forecasts={BERT: Forecast(eta=310.0, low=260.0, high=395.0)},
    )
    return page(
        "# Events and plans",
        "The input and output of the core, and the entries of the run log: a file of JSON lines "
        "with a header first, then every event and every plan that is not empty, in order.",
        "Encoding of values:",
        "- `type` names the class. Fields with their default are omitted.\n"
        "- Times (`at`, and every other time) are seconds on the engine's clock.\n"
        "- `Generation`, `Gpu`, `Configuration`, `Worker`, `Forecast` and `SwitchCost` are lists, "
        "in the order of their fields.\n"
        '- Numbers that are not finite are the strings `"inf"`, `"-inf"` and `"nan"`.\n'
        "- `Number`, `Positive`, `Time` and similar types have bounds: see the column.\n"
        "- An unknown or missing field is refused; the error names it.",
        "A report of a training process has the generation of its worker. A report of an older "
        "generation, or of a job that has ended, is dropped and counted.",
        "[Events](#events) · [Actions](#actions) · [The plan](#plan) · [The header](#header) · "
        "[Values](#values)",
        "## Events",
        "Facts, named in the past tense. Each has `at`, the time when the engine learned of it.",
        *(_entry(event, when) for event, when in EVENT_EXAMPLES),
        "## Actions",
        "Orders to an engine. The actions of a [plan](#plan) can be carried out at once and in "
        "parallel. [Write an engine](../guides/write-an-engine.md) describes them in detail.",
        *(_entry(action, f"Answered by: {answer}.") for action, answer in ACTION_EXAMPLES),
        "## Plan",
        _docstring(Plan),
        _fields(Plan),
        block("json", encode(plan)),
        "## Header",
        _docstring(Header),
        _fields(Header),
        block("json", encode(header)),
        "## Values",
        *(page(f"### {value.__name__}", _docstring(value), _fields(value)) for value in VALUES),
        "### EndReason",
        "One of " + ", ".join(code(reason.value) for reason in EndReason) + ". A job has completed "
        "if it " + " or ".join(code(r.value) for r in EndReason if r.completed) + ".",
    )


def _entry(value: ev.Event | orders.Action, when: str) -> str:
    kind = type(value)
    return page(
        f"### {kind.__name__}", _docstring(kind), when, _fields(kind), block("json", _line(value))
    )


def _line(value: ev.Event | orders.Action) -> str:
    """The JSON of an event in the log, or of an action in a plan."""
    if isinstance(value, typing.get_args(ev.Event)):
        return encode(typing.cast(ev.Event, value))
    plan = encode(Plan(number=1, at=0.0, actions=(typing.cast(orders.Action, value),)))
    before, after = encode(Plan(number=1, at=0.0)).removesuffix("}") + ',"actions":[', "]}"
    return plan.removeprefix(before).removesuffix(after)


def _docstring(kind: type) -> str:
    """The docstring of a class; empty if it is generated from the fields."""
    text = inspect.cleandoc(kind.__doc__ or "")
    return "" if text.startswith(f"{kind.__name__}(") else text


def _fields(kind: type) -> str:
    if issubclass(kind, msgspec.Struct):
        names = inspect.get_annotations(kind)
        rows = [
            [code(f.name), code(names[f.name]), _bounds(f.type), _default(f)]
            for f in structs.fields(kind)
        ]
    else:  # a named tuple
        given = vars(kind)["_field_defaults"]
        hints = typing.get_type_hints(kind, include_extras=True)
        rows = [
            [
                code(name),
                code(_bare(hint)),
                _bounds(hints[name]),
                code(given[name]) if name in given else "required",
            ]
            for name, hint in kind.__annotations__.items()
        ]
    return table(["field", "type", "bounds", "default"], rows)


def _bounds(hint: object) -> str:
    """The range of values in its type, which is checked when the value is read."""
    found = [meta for part in _parts(hint) for meta in getattr(part, "__metadata__", ())]
    return ", ".join(_range(meta) for meta in found)


def _parts(hint: object) -> Iterable[object]:
    yield hint
    if not hasattr(hint, "__metadata__"):
        for inner in typing.get_args(hint):
            yield from _parts(inner)


def _range(meta: msgspec.Meta) -> str:
    if meta.pattern is not None:
        return FORMS[meta.pattern]
    least = _bound(meta.ge) if meta.ge is not None else f"more than {_bound(meta.gt)}"
    return f"{least} to {_bound(meta.le)}"


def _bound(number: float | None) -> str:
    if isinstance(number, int) and number >= 2**20 and number.bit_count() == 1:
        return f"2^{number.bit_length() - 1}"
    return f"{number:g}"


def _default(field: structs.FieldInfo) -> str:
    if field.default_factory is not NODEFAULT or field.default in ("", ()):
        return "empty"
    if field.default is NODEFAULT:
        return "required"
    if isinstance(field.default, msgspec.Struct):
        return code(f"{type(field.default).__name__}()")
    return code(field.default)


def _bare(hint: object) -> str:
    """The text of an annotation."""
    return str(getattr(hint, "__forward_arg__", getattr(hint, "__name__", hint)))


def _names(kinds: Iterable[type]) -> list[str]:
    return [kind.__name__ for kind in kinds]
