"""trace-format.md: the columns of a trace, the rules, and the models that can be named."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from docs.reference.markdown import EXAMPLES, block, code, page, table
from ones.errors import InvalidFileError
from ones.sim.lengths import one_gpu_seconds
from ones.workload import COLUMNS, paper_numbers, read_trace
from ones.workload.csv_columns import Column
from ones.workload.summary import summary_of


def trace_page() -> str:
    path = EXAMPLES / "trace.csv"
    trace = read_trace(path)
    summary = summary_of(trace, 8, one_gpu_seconds)
    kinds = paper_numbers().kinds.values()
    return page(
        "# Trace format",
        "A trace lists the arrivals of jobs and the incidents of the cluster. It is a CSV file in "
        "UTF-8. The first line has the names of the columns: any of these, in any order.",
        table(
            ["column", "type", "default", "what it is"],
            (
                [
                    code(column.name),
                    _type_of(column),
                    "" if column.default in (None, "") else code(column.default),
                    column.help,
                ]
                for column in COLUMNS
            ),
        ),
        "## Rules",
        "- The column `at` is required, with a value in every row. `submit` also needs `id` and "
        "`model`, `cancel` needs `id`, and the node events need `node`.\n"
        "- An empty cell or a missing column means the default. Spaces around a value are ignored. "
        "Empty lines are skipped.\n"
        "- Rows are in order of time. At equal times arrivals come before incidents, both in the "
        "order of the file.\n"
        "- Reading is strict. An unknown column, a value of the wrong type or out of its range, a "
        "duplicate job, a target that its model never reaches: each is refused with "
        "file, line, field and value, and nothing is run.\n"
        "- A trace that the cluster can never serve is refused as well: a job that asks for more "
        "GPUs than there are, a node that does not exist, a cancel of a job that never arrives.",
        "Examples of errors:",
        block("text", "\n".join(_refusals())),
        "## Example",
        block("csv", path.read_text(encoding="utf-8")),
        f"That is {summary['jobs']} jobs and {len(trace.incidents)} incidents. The file is "
        "[examples/trace.csv](examples/trace.csv). To inspect and to run it:",
        block(
            "sh",
            "ones trace inspect docs/reference/examples/trace.csv --gpus 8\n"
            "ones sim --workload docs/reference/examples/trace.csv --gpus 8 --policy equi",
        ),
        "`ones trace generate` writes traces of this format.",
        "## Models",
        "Values of `model`. The numbers of each model, with their sources, are in "
        "`src/ones/workload/paper.toml`. The default of `dataset_size` is the median of the "
        "sizes. A target accuracy must be below the limit. One-GPU seconds are the mean over the "
        "sizes, with the base batch.",
        table(
            [
                "model",
                "sizes of data set",
                "optimizer",
                "base batch",
                "fits one GPU",
                "target accuracy",
                "limit",
                "one-GPU seconds",
            ],
            (
                [
                    code(kind.name),
                    f"{min(kind.sizes)} to {max(kind.sizes)} ({len(kind.sizes)})",
                    kind.optimizer,
                    f"{kind.base_batch:g}",
                    f"{kind.max_local_batch:g}",
                    f"{kind.target_accuracy:g}",
                    f"{kind.accuracy_limit:g}",
                    f"{kind.one_gpu_seconds:g}",
                ]
                for kind in kinds
            ),
        ),
    )


def _type_of(column: Column) -> str:
    name = column.holds.removeprefix("a ")
    return name if column.least is None else f"{name}, at least {column.least}"


def _refusals() -> Iterator[str]:
    """Real error messages, for traces with one mistake each."""
    mistakes = (
        "at,id,modle\n0,a,bert-cola\n",
        "at,id,model,gpus\n0,a,bert-cola,many\n",
        "at,id,model\n0,a,bert-cola\n5,a,bert-cola\n",
        "at,id,model,target_accuracy\n0,a,bert-cola,0.99\n",
    )
    with tempfile.TemporaryDirectory() as home, contextlib.chdir(home):
        for text in mistakes:
            Path("trace.csv").write_text(text, encoding="utf-8")
            try:
                read_trace(Path("trace.csv"))
            except InvalidFileError as problem:
                yield f"ones: {problem}"
            else:
                raise SystemExit(f"docs/build.py: this trace is no longer refused: {text!r}")
