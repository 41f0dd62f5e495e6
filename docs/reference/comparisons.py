"""The part of results.md on `ones compare` and `ones paper`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from docs.reference.markdown import code, same, table
from ones.lab.comparison.grid import Grid
from ones.lab.comparison.results import Comparison
from ones.lab.comparison.summary import AVERAGED, Record
from ones.lab.comparison.tasks import run_task
from ones.lab.comparison.variants import parse_variants
from ones.lab.paper.artifact import scheduler_row
from ones.lab.runs import RunSpec

Keys = Mapping[str, tuple[str, str]]

#: keys of a row in addition to those of `ones sim`
ROW_KEYS: Keys = {
    "label": ("", "as requested: the policy, or `POLICY:VARIANT`"),
    "asked_mechanism": ("", "`native`, `elastic` or `checkpoint`, before `native` is resolved"),
    "load": ("", "single-GPU seconds that arrive per GPU-second; null: the gap applies"),
    "physics": ("", "changed numbers of the simulator; empty if there are none"),
    "kinds": ("", "`given`, `hidden` from policies, or `own`: every job is a kind of its own"),
    "left_out": ("", "kind that was left out; empty: none"),
    "shares": ("0 to 1", "of jobs that are `mislabelled`, `killed` midway, or `rigid`"),
    "within_200s": ("0 to 1", "share of the completed jobs that took less than 200 s"),
    "max_exec": ("s", "longest execution"),
    "resized_jobs": ("jobs", "that ever had another number of GPUs"),
    "rebatched_jobs": ("jobs", "that ever had another global batch"),
}
ARTIFACT_KEYS: Keys = {
    "policy": ("", "the policy, or `POLICY:VARIANT`"),
    "mechanism": ("", "`elastic` or `checkpoint`, the one that the policy declares"),
    "mean_jct": ("s", "completion time, mean over jobs and seeds"),
    "mean_exec": ("s", "execution time"),
    "mean_queue": ("s", "queueing time"),
    "median_jct": ("s", "median completion time, mean over seeds"),
    "within_200s": ("0 to 1", "share of the jobs that took less than 200 s"),
    "p90_jct": ("s", "90 % of the jobs of all seeds took no longer"),
    "max_jct": ("s", "longest completion time of all seeds"),
    "n": ("", "number of runs, one for each seed"),
    "first_seed": ("", "of them"),
    "mean_jct_low": ("s", "lower end of the 95 % interval of the mean over seeds; null: one seed"),
    "mean_jct_high": ("s", "upper end of it"),
    "rescales": ("", "mean over seeds"),
    "preemptions": ("", "mean over seeds"),
    "finished": ("jobs", "mean over seeds"),
    "utilization": ("0 to 1", "share of all GPU time with a worker"),
}
SUMMARY_KEYS: Keys = {
    "label": ("", "name of the compared variant"),
    "policy": ("", "its policy"),
    "settings": ("", "its settings that are not defaults"),
    "workload": ("", "name of a generated workload, or the path of the trace"),
    "gpus": ("GPUs", "of the cluster"),
    "mechanism": ("", "as asked for"),
    "rescaling": ("", "`elastic` or `checkpoint`, after `native` is resolved"),
    "load": ("", "as in a row"),
    "physics": ("", "as in a row"),
    "kinds": ("", "as in a row"),
    "left_out": ("", "as in a row"),
    "shares": ("", "as in a row"),
    "jobs": ("jobs", "of a run"),
    "n": ("", "number of runs, one for each seed"),
    "first_seed": ("", "of them"),
    **{name: ("", "mean over the runs of the key of the same name") for name in AVERAGED},
    "pooled_p99_jct": ("s", "99th percentile of the completion times of the jobs of all runs"),
    "longest_exec": ("s", "longest execution in all the runs"),
    "mean_jct_low": ("s", "lower end of its 95 % bootstrap interval over seeds; null for one"),
    "mean_jct_high": ("s", "its upper end"),
    "mean_jct_sd": ("s", "standard deviation over seeds; null for one"),
}
TEST_KEYS: Keys = {
    "label": ("", "the first policy of the comparison"),
    "against": ("", "the other policy"),
    "gpus": ("GPUs", "of the cluster"),
    "mechanism": ("", "as asked for"),
    "load": ("", "as in a row"),
    "workload": ("", "as in a row"),
    "pairs": ("", "number of jobs of the same seed that completed under both"),
    "seeds": ("", "number of seeds of the pairs"),
    "p_two_sided": ("", "Wilcoxon signed-rank test of completion times; small: they differ"),
    "p_less": ("", "small: the first is faster"),
    "p_greater": ("", "small: the first is slower"),
    "effect": ("-1 to 1", "rank-biserial correlation: -1 when the first is faster for every job"),
    "effect_low": ("", "lower end of its 95 % bootstrap interval"),
    "effect_high": ("", "upper end"),
    **{
        f"{time}_reduction_{end}": (
            "%",
            f"reduction of mean {time} time by the first policy"
            if end == "percent"
            else f"{'lower' if end == 'low' else 'upper'} end of its 95 % bootstrap interval",
        )
        for time in ("completion", "execution", "queueing")
        for end in ("percent", "low", "high")
    },
}


def comparison_parts(run_keys: Keys) -> Iterator[str]:
    """The parts of the page; the keys are checked against a real comparison."""
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
    row = scheduler_row(result["summary"][0], records[:1])
    same("keys of a row of `ones paper artifact`", ARTIFACT_KEYS, row)
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
        " `paper` (statement of its text), `here`, `n`, `spread`, `agrees` (true, false, or null"
        " if there is nothing to compare with), `sentence` and `assumption`;"
        " `stronger_variants`: by policy, the variant of the headline; `missing`:"
        " schedulers that are not installed."
    )
    yield "## ones paper artifact"
    yield (
        "`setup`: checks of the set-up; `targets`: ranges for a replication; each has `name`,"
        " `value`, `low`, `high` and `ok` (null if value or range is not known). `rows`: one for"
        " each scheduler. `authors`: the authors' result files, or their figures without `--data`,"
        " with `policy` (our name of the scheduler), `file` and the keys of a row that are job"
        " times. `stronger_variants`: by rival, the variant that the targets use;"
        " `least_mean_exec`: mean execution in seconds with every job alone on its best number of"
        " GPUs; `warnings`: what the files cannot show; `figure`: its path in the directory of"
        " `--out`; `failures`; `data`,"
        " `trace`, `jobs`, `software`. `artifact.json` in that directory holds the same. Each"
        " entry of `rows`:"
    )
    yield _keys(ARTIFACT_KEYS)
    yield "## ones paper readings"
    yield (
        "`rows`: one for each reading, with `reading`, `mean_jct`, `n` (runs) and, by rival, the"
        " reduction of the mean completion time in percent with its interval (`drl`, `drl_low`,"
        " `drl_high`, ...). `paper`: the paper's reductions; `figure`: its name in the directory of"
        " `--out`."
    )
    yield "## ones paper, locked"
    yield (
        "Content of `locked.json` in the directory of `--out`: `plan` (`commit`, `first_seed`,"
        " `seeds`, `size`), the frame of a benchmark (below), and `rows`: for each comparison its"
        " `set`, `scenario`, `gpus`, `mechanism`, `load`, `label`, `rival`, `seeds`, `pairs`,"
        " `less_percent` with `less_low` and `less_high` (reduction of the mean completion time),"
        " `effect` (rank-biserial correlation; negative: most jobs are faster), `p` (Wilcoxon,"
        " two-sided), `p_holm` (adjusted over all rows), `result` (`faster` or `slower` where"
        " `p_holm` is below 0.05 and mean and ranks have the same direction, else `-`), and"
        " `figures` and `rival_figures`: means over seeds of `mean_jct`, `p99_jct`, `makespan`,"
        " `gpu_hours`, `utilization`,"
        " `worst_rho` and `unfair_share`. `summary`: the keys of `ones compare`, with `set`"
        " and `scenario`."
    )
    yield "## ones paper sweeps"
    yield (
        "Content of `sweeps.json` in the directory of `--out`: the frame of a benchmark (below),"
        " `software`, `command`, and `rows`: for each sweep `name`, `title`, `question`,"
        " `commands` (of `ones compare`), `sentence`, `heads` and `table` (as they are shown),"
        " `figure` (a path in the directory, or null), `figure_told`, and `leads`: for each variant"
        " of `ones` in each setting `world` (what differs), `gpus`, `mechanism`, `load`,"
        " `label`, `jobs` (of a run), `seeds`, `mean_jct`, `mean_jct_low` and `mean_jct_high`,"
        " `pooled_p99_jct`, `least_p99_jct` (of the rivals), `p99_more_percent`,"
        " `policy_cpu_seconds` (of a run), and `against`: `rival`, its `mean_jct`, and"
        " `less_percent` with `less_low` and `less_high`, by how much `ones` is below it."
    )


def _keys(keys: Keys) -> str:
    return table(
        ["key", "unit", "what it is"],
        ([code(key), unit, meaning] for key, (unit, meaning) in keys.items()),
    )
