"""The part of results.md on `ones compare` and `ones paper`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from docs.reference.markdown import code, same, table
from ones.lab.comparison.grid import Grid
from ones.lab.comparison.results import Comparison
from ones.lab.comparison.summary import AVERAGED, Record
from ones.lab.comparison.tasks import run_task
from ones.lab.comparison.variants import parse_variants
from ones.lab.runs import RunSpec

Keys = Mapping[str, tuple[str, str]]

#: of a row, beside those of `ones sim`
ROW_KEYS: Keys = {
    "label": ("", "as it was asked for: the policy, or `POLICY:VARIANT`"),
    "asked_mechanism": ("", "`native`, `elastic` or `checkpoint`, before `native` is resolved"),
    "load": ("", "single-GPU seconds that arrive per GPU-second; null: the gap holds"),
    "physics": ("", "factors by which the simulator's truth was multiplied; else empty"),
    "within_200s": ("0 to 1", "share of the completed jobs that took less than 200 s"),
    "max_exec": ("s", "longest execution"),
    "resized_jobs": ("jobs", "that ever had another number of GPUs"),
    "rebatched_jobs": ("jobs", "that ever had another global batch"),
}
SUMMARY_KEYS: Keys = {
    "label": ("", "who"),
    "policy": ("", "its policy"),
    "settings": ("", "its settings that are not defaults"),
    "workload": ("", "`paper`, or the path of the trace"),
    "gpus": ("GPUs", "of the cluster"),
    "mechanism": ("", "as asked for"),
    "rescaling": ("", "`elastic` or `checkpoint`: what it is for this policy"),
    "load": ("", "as in a row"),
    "physics": ("", "as in a row"),
    "jobs": ("jobs", "of a run"),
    "n": ("", "runs, one for each seed"),
    "first_seed": ("", "of them"),
    **{name: ("", "mean over the runs of what a row has under this name") for name in AVERAGED},
    "pooled_p99_jct": ("s", "99 % of the jobs of all the runs together are done within it"),
    "longest_exec": ("s", "longest execution in all the runs"),
    "mean_jct_low": ("s", "lower end of its 95 % bootstrap interval over seeds; null for one"),
    "mean_jct_high": ("s", "its upper end"),
    "mean_jct_sd": ("s", "standard deviation over seeds; null for one"),
}
TEST_KEYS: Keys = {
    "label": ("", "the first policy that was named"),
    "against": ("", "another one"),
    "gpus": ("GPUs", "of the cluster"),
    "mechanism": ("", "as asked for"),
    "load": ("", "as in a row"),
    "pairs": ("", "the same job of the same seed, completed under both"),
    "seeds": ("", "that they are of"),
    "p_two_sided": ("", "Wilcoxon signed-rank test of completion times; small: they differ"),
    "p_less": ("", "small: the first is faster"),
    "p_greater": ("", "small: the first is slower"),
    "effect": ("-1 to 1", "rank-biserial correlation: -1 when the first is faster for every job"),
    "effect_low": ("", "lower end of its 95 % bootstrap interval"),
    "effect_high": ("", "upper end"),
    **{
        f"{time}_reduction_{end}": (
            "%",
            f"by how much less the first has of mean {time} time"
            if end == "percent"
            else f"{'lower' if end == 'low' else 'upper'} end of its 95 % bootstrap interval",
        )
        for time in ("completion", "execution", "queueing")
        for end in ("percent", "low", "high")
    },
}


def comparison_parts(run_keys: Keys) -> Iterator[str]:
    """Checked against a comparison that is made for it."""
    cells = Grid(
        variants=parse_variants(["fifo", "equi"]),
        seeds=[1],
        gpus=[8],
        base=RunSpec(policy="", jobs=2),
    ).cells()
    records = [Record(cell, run_task(cell.task, cell.spec)) for cell in cells]
    result = Comparison(records, []).to_json()
    same("keys of a row of a comparison", {*run_keys, *ROW_KEYS}, result["rows"][0])
    same("keys of a summary", SUMMARY_KEYS, result["summary"][0])
    same("keys of a test", TEST_KEYS, result["tests"][0])
    yield "## ones compare"
    yield (
        "`rows`: one for each run, with the keys of `ones sim` and those below. `summary`: one for"
        " each policy and setting. `tests`: the first policy against each other one. `failures`:"
        " runs that ended in an error, each with `name`, `message`, `exit_code` and `traceback`."
        " `results.json` in the directory of `--out` holds the same; `rows.csv` and `jobs.csv` are"
        " for spreadsheets. Exit code 0 if every run succeeded, else that of the worst failure."
    )
    yield _keys(ROW_KEYS)
    yield "Each entry of `summary`:"
    yield _keys(SUMMARY_KEYS)
    yield "Each entry of `tests`:"
    yield _keys(TEST_KEYS)
    yield "## ones paper"
    yield (
        "The keys of `ones compare`, and `panels`: for each figure or table `panel`, `title`,"
        " `paper` (what its text reports), `here`, `n`, `spread`, `agrees` (true, false, or null"
        " where there is nothing to agree with), `sentence` and `assumption`;"
        " `stronger_variants`: by policy, the variant that stands in the headline; `missing`:"
        " schedulers that are not installed."
    )
    yield "## ones paper sweeps"
    yield (
        "What `sweeps.json` in the directory of `--out` holds: the frame of a benchmark (below),"
        " `software`, `command`, and `rows`: for each sweep `name`, `title`, `question`,"
        " `commands` (of `ones compare`), `sentence`, `heads` and `table` (as they are shown),"
        " `figure` (a path in the directory, or null), `figure_told`, and `leads`: for each variant"
        " of `ones` in each setting `world` (what was not as usual), `gpus`, `mechanism`, `load`,"
        " `label`, `jobs` (of a run), `seeds`, `mean_jct`, `mean_jct_low` and `mean_jct_high`,"
        " `pooled_p99_jct`, `least_p99_jct` (of the rivals), `p99_more_percent`,"
        " `policy_cpu_seconds` (of a run), and `against`: `rival`, its `mean_jct`, and"
        " `less_percent` with `less_low` and `less_high`, by how much `ones` is below it."
    )


def _keys(keys: Keys) -> str:
    return table(
        ["key", "unit", "what it is"],
        ([code(key), unit, told] for key, (unit, told) in keys.items()),
    )
