"""results.md: the keys of the output of `--json`. A key without a description stops the build."""

from __future__ import annotations

from collections.abc import Mapping

from docs.reference.comparisons import comparison_parts
from docs.reference.markdown import EXAMPLES, code, page, same, table
from ones.lab.runs import Run, RunSpec
from ones.lab.workload_summary import summarize_workload

RUN_KEYS = {
    "policy": ("", "name of the policy"),
    "workload": ("", "`paper`, or the path of the trace"),
    "gpus": ("GPUs", "of the cluster at the start"),
    "jobs": ("jobs", "that arrive"),
    "seed": ("", "of workload, noise and policy"),
    "mechanism": ("", "`elastic` or `checkpoint`; `native` is resolved to the policy's own"),
    "mean_jct": ("s", "mean job completion time"),
    "median_jct": ("s", "median job completion time"),
    "p95_jct": ("s", "95th percentile of the job completion time"),
    "p99_jct": ("s", "99th percentile of the job completion time"),
    "mean_exec": ("s", "mean execution time"),
    "mean_queue": ("s", "mean queueing time; `mean_exec + mean_queue = mean_jct`"),
    "makespan": ("s", "from the first submission to the last completion"),
    "utilization": ("0 to 1", "share of the GPU time in which a worker was on the GPU"),
    "gpu_hours": ("GPU h", "held by all jobs, start-up and pauses included"),
    "mean_rho": ("", "mean finish-time fairness over completed jobs; below 1 is better than fair"),
    "worst_rho": ("", "the highest of them"),
    "unfair_share": ("0 to 1", "share of the completed jobs with ρ above 1"),
    "rescales": ("", "changes of size or batch between two steps, of all jobs"),
    "rescale_rate": ("1/h", "rescales per job and hour of running"),
    "preemptions": ("", "times that a job was stopped and returned to the queue, of all jobs"),
    "finished": ("jobs", "that completed: converged or finished"),
    "failed": ("jobs", "that failed"),
    "cancelled": ("jobs", "that were cancelled"),
    "refused": ("jobs", "that the policy did not admit; they have never run"),
    "unfinished": ("jobs", "not ended when no event was left"),
    "wall_seconds": ("s", "wall time of the run"),
    "policy_cpu_seconds": ("s", "CPU time of the policy"),
    "events": ("", "events from the engine, without wake-ups"),
    "dropped": (
        "",
        "reports that were dropped, by cause: `stale`, `duplicate`, `ended`, `unknown`",
    ),
}
BENCH_KEYS = {
    "bench": ("", "`sim`"),
    "commit": ("", "of the code that ran; null when it is installed without a checkout"),
    "load_average": ("", "of the machine, over the last minute; above 1, other processes ran too"),
    "measured_at": ("", "time of the end"),
    "cores": ("", "CPU cores available to the process"),
    "rows": ("", "one for each size and kind of event"),
}
BENCH_ROW_KEYS = {
    "case": ("", "description of the row"),
    "policy": ("", "name of the policy"),
    "gpus": ("GPUs", "of the cluster"),
    "jobs": ("jobs", "that arrive, at a load of 1"),
    "event": ("", "`submit`, `epoch`, `end`, `other`, or `all` of them together"),
    "n": ("", "events of that kind"),
    "events_per_second": ("1/s", "null if there was none"),
    "microseconds_per_event": ("µs", "mean cost of an event in engine, state, policy and plan"),
    "peak_mb": ("MB", "peak memory of the process"),
    "wall_seconds": ("s", "of the whole case"),
    "rival": ("", "the same event on the smallest cluster; of a whole run: the first policy"),
    "rival_microseconds_per_event": ("µs", "cost of the rival"),
    "ratio": ("", "cost divided by the cost of the rival"),
}
#: each measured value comes with `_low` and `_high`: the lowest and highest of all seeds
CONVERGENCE_ROW_KEYS = {
    "case": ("", "description of the row"),
    "figure": ("", "`workers` or `jump`"),
    "workers": ("", "number of workers"),
    "batches": ("samples", "global batch, by the epoch from which on it applies"),
    "rule": ("", "of the learning rate when the batch changes: `linear` or `none`"),
    "ramp_steps": ("steps", "in which the learning rate changes"),
    "n": ("", "runs, each with its own seed"),
    "diverged": ("", "runs with an infinite or undefined loss"),
    "final_accuracy": ("", "mean over the seeds, on held-out samples"),
    "target_accuracy": ("", "`workers` only, like the next two keys"),
    "reached": ("", "runs that reached the target"),
    "epochs_to_target": ("epochs", "mean; a run that missed the target counts with all its epochs"),
    "loss_before": (
        "",
        "`jump` only, like the next two keys: training loss of the epoch before the change",
    ),
    "peak_loss": ("", "highest training loss of an epoch after the change; null if a run diverged"),
    "epochs_to_recover": ("epochs", "until the loss is back at its value before the change"),
    "rival": ("", "one worker, or a constant batch"),
    "rival_epochs_to_target": ("epochs", "of the rival, in `workers`"),
    "rival_peak_loss": ("", "of the rival, in `jump`"),
    "ratio": ("", "epochs to target, or peak loss, divided by the rival's"),
    "losses": (
        "",
        "`jump` only: training loss of each epoch, median over the seeds; null if not finite",
    ),
}
RESCALE_ROW_KEYS = {
    "case": ("", "description of the row"),
    "parameter_mb": ("MB", "of parameters; SGD with momentum sends twice that to joining workers"),
    "compiled": ("", "whether the model runs through torch.compile (the smallest size only)"),
    "change": ("", "of workers, as `1->2`"),
    "n": ("", "measured changes of this kind"),
    "pause_ms": (
        "ms",
        "median time from the end of the last step before the change until the slowest staying"
        " worker can begin the next step; `_low` and `_high`: shortest and longest change",
    ),
    "agree_ms": ("ms", "part of the pause, in the first worker: until all workers agree to switch"),
    "connect_ms": ("ms", "part of the pause; 0, because the next group is connected before"),
    "state_ms": ("ms", "part of the pause: transfer of remaining state to joining workers"),
    "resume_ms": ("ms", "part of the pause: until the next batch is loaded"),
    "background_connect_ms": ("ms", "connection of the next group while training continues"),
    "background_feed_ms": ("ms", "transfer of state to joining workers while training continues"),
    "optimizer_held_ms": ("ms", "total delay of steps by the transfer"),
    "slowed_ms": (
        "ms",
        "total delay of steps before the switch: joining workers start on the same CPUs",
    ),
    "until_stepped_ms": ("ms", "until the first step with the new workers is complete"),
    "first_step_extra_ms": ("ms", "how much longer this first step takes than a plain step"),
    "rival": (
        "",
        "`checkpoint`, `zygote` or `torchrun`; with `--unix` `launchd`: the same job as that user,"
        " in place",
    ),
    "rival_n": ("", "changes of the rival"),
    "rival_pause_ms": ("ms", "pause of the rival; `_low` and `_high` as above"),
    "rival_save_ms": ("ms", "part of the rival's pause, like the next four; not for `torchrun`"),
    "rival_stop_and_start_ms": ("ms", "old processes end, new ones start"),
    "rival_import_and_build_ms": ("ms", ""),
    "rival_load_ms": ("ms", ""),
    "rival_connect_ms": ("ms", ""),
    "rival_until_stepped_ms": ("ms", "until the first step of the rival is complete"),
    "rival_first_step_extra_ms": ("ms", "as ours, on the slowest process"),
    "rival_steps_lost": ("steps", "that are repeated"),
    "ratio": ("", "pause of the rival divided by ours"),
    "load_average": ("", "of the machine, mean over the repeats"),
}
#: keys of a row of `ones bench rescale --unix`, besides those above
USER_ROW_KEYS = {
    "median_ms": ("ms", "median pause; `_low` and `_high`: 95 % bootstrap interval"),
    "rival_median_ms": ("ms", "median pause with ones-launchd; `_low` and `_high` as above"),
    "more_ms": ("ms", "difference of the two medians; `_low` and `_high` as above"),
}
OVERHEAD_ROW_KEYS = {
    "case": ("", "description of the row"),
    "model": ("", "`cnn`, `transformer` or `mlp`"),
    "workers": ("", "number of workers"),
    "n": ("", "pairs of blocks of steps"),
    "step_ms": ("ms", "CPU time of a step of one worker, all threads, median"),
    "wall_step_ms": ("ms", "wall time of a step, slowest worker"),
    "rival": ("", "DistributedDataParallel in its best form"),
    "rival_step_ms": ("ms", "CPU time of the rival"),
    "rival_wall_step_ms": ("ms", "wall time of the rival"),
    "ratio": ("", "median of the paired ratios of CPU time"),
    "overhead_percent": ("%", "100 (ratio - 1); `_low` and `_high`: 95 % bootstrap interval"),
    "wall_overhead_percent": ("%", "the same for wall time, with its interval"),
    "elastic_us_per_step": ("µs", "CPU time of work that only an elastic job does"),
    "load_average": ("", "of the machine, after the case"),
}
#: a row has only the keys of its case
CONTROL_ROW_KEYS = {
    "case": ("", "description of the row"),
    "policy": ("", "name of the policy"),
    "n": ("", "measurements"),
    "idle_cpu_percent": ("% of a core", "of a controller before the first job"),
    "idle_mb": ("MB", "resident memory of that controller"),
    "idle_own_mb": ("MB", "part of it that no other process can share"),
    "after_jobs_cpu_percent": ("% of a core", "of a controller after its jobs have ended"),
    "after_jobs_mb": ("MB", "its resident memory, with the compiled search loaded"),
    "after_jobs_own_mb": ("MB", "part of it that no other process can share"),
    "submit_to_first_step_seconds": (
        "s",
        "from a submission to the end of the first training step",
    ),
    "submit_to_first_step_seconds_high": ("s", "longest of these times"),
    "stream_update_ms": ("ms", "from a request to its effect in `/api/events`; median"),
    "page_update_ms": ("ms", "the same in the stream of an open page"),
    "page_update_p99_ms": ("ms", "99th percentile"),
    "freed_to_worker_ms": ("ms", "from a free slot to the process of the next job; median"),
    "freed_to_worker_p99_ms": ("ms", "99th percentile"),
    "submits_per_second": ("1/s", "over HTTP; each is on disk when it is answered"),
    "submit_p50_ms": ("ms", "median time to the answer of a submission"),
    "submit_p99_ms": ("ms", "99th percentile"),
    "slots": ("", "of the emulated cluster"),
    "jobs": ("jobs", "on the emulated cluster"),
    "workers": ("", "that report"),
    "reports_per_second": ("1/s", "of all workers"),
    "decision_to_order_ms": ("ms", "from an event to its orders, commit included; median"),
    "decision_to_order_p99_ms": ("ms", "99th percentile"),
    "first_decision_ms": ("ms", "the oldest decision kept; it may include loading the search"),
    "busy_cpu_percent": ("% of a core", "of the controller during that time"),
    "busy_mb": ("MB", "resident memory of the controller"),
    "busy_own_mb": ("MB", "part of it that no other process can share"),
    "events_per_second": ("1/s", "through scheduler, cards and store, with all decisions"),
    "events": ("", "in the log that is read at the restart"),
    "restart_seconds": ("s", "from the start of the process to its first answer"),
    "database_mb": ("MB", "size of that log"),
}
FORECAST_ROW_KEYS = {
    "case": ("", "`live` or `simulated`"),
    "policy": ("", "name of the policy: `ones`"),
    "jobs": ("jobs", "that were submitted"),
    "completed": ("jobs", "that completed"),
    "gpus": ("GPUs", "or slots"),
    "seed": ("", "of the simulated jobs; null in the row `live`"),
    "n": (
        "forecasts",
        "in effect at 20, 50 or 80 % of the time from a job's first trained step to its end",
    ),
    "missing": ("forecasts", "that were not there then: before the first one, or while it waited"),
    "covered_percent": ("%", "of the `n` forecasts with the real end in their 90 % range"),
    "covered_percent_at_20": ("%", "of those at 20 %; `_at_50` and `_at_80` alike"),
    "covered_percent_at_50": ("%", "of those at 50 %"),
    "covered_percent_at_80": ("%", "of those at 80 %"),
    "early_percent": ("%", "with an end before the range"),
    "late_percent": ("%", "with an end after the range"),
    "median_range": ("", "width of the range over the forecast remaining time, median"),
    "load_average": ("", "of the machine after the row was measured"),
}

FIDELITY_ROW_KEYS = {
    "case": ("", "`calibration`, a policy and its mechanism, or `order`"),
    "trace": ("", "name of the trace: `mixed`, `bursts` or `long`; `quick` with `--quick`"),
    "policy": ("", "name of the policy"),
    "mechanism": ("", "`elastic`, or `restart`: real checkpoints and restarts"),
    "jobs": ("jobs", "of the trace"),
    "slots": ("", "CPU slots"),
    "runs": ("", "live runs of each policy (`--repeats`); live values are means over them"),
    "n": ("", "compared jobs: completed in every run; of `order`, pairs of policies"),
    "mean_jct_error_percent": (
        "%",
        "of the simulated mean completion time against the live one, without sign; of `order`,"
        " the first policy's",
    ),
    "max_job_error_percent": ("%", "of the job with the largest error"),
    "mean_job_error_percent": ("%", "mean of the absolute values over the jobs"),
    "mean_jct_seconds": ("s", "live"),
    "mean_jct_seconds_sd": ("s", "standard deviation over the runs; null with one run"),
    "mean_jct_seconds_each": ("s", "list with a value for each run"),
    "simulated_mean_jct_seconds": ("s", "simulated"),
    "makespan_seconds": ("s", "live"),
    "simulated_makespan_seconds": ("s", "simulated"),
    "rescales": ("", "live; also `simulated_rescales`"),
    "preemptions": ("", "live; also `simulated_preemptions`"),
    "losses": ("", "workers that died, live; also `simulated_losses`"),
    "restarts": ("", "starts of jobs beyond their first, live"),
    "job_error_percent": ("%", "of each job; above 0: the simulated time is too long"),
    "load_average": ("", "of the machine at the end"),
    "live_order": ("", "of `order`: policies by mean completion time, the best first"),
    "simulated_order": ("", "the same, simulated"),
    "pairs_in_order": ("", "pairs of policies that both runs rank alike"),
}
EMBED_ROW_KEYS = {
    "case": ("", "the policy and the cost of a change"),
    "policy": ("", "policy or variant; `ideal` knows the true speed and length of jobs"),
    "model": ("", "laws of training, or the name of the workload file"),
    "kinds": ("", "kinds of jobs: `given` or `hidden`"),
    "hours": ("h", "in which the jobs of a generated workload arrive"),
    "scatter": ("", "lognormal sigma of lengths"),
    "gpus": ("GPUs", "of the cluster"),
    "first_seed": ("", "seed of the first workload"),
    "workloads": ("", "number of workloads"),
    "n": ("", "jobs of all workloads"),
    "tick_seconds": ("s", "between two decisions"),
    "cost_seconds": ("s", "pause of a job at each change"),
    "mean_jct_seconds": ("s", "mean completion time of all jobs"),
    "mean_jct_seconds_each": ("s", "list with a value for each workload"),
    "median_jct_seconds": ("s", "median completion time"),
    "p99_jct_seconds": ("s", "99th percentile of the completion time"),
    "rescales": ("", "changes of size or batch"),
    "preemptions": ("", "times that a job lost all its GPUs"),
    "size_changes": ("", "changes of the number of GPUs of a job after its first start"),
    "taken_back": ("", "of `size_changes`: the job had its former number again within 300 s"),
    "policy_cpu_seconds": ("s", "CPU time of the scheduler"),
    "rival": ("", "value of `--rival`; null in its own row, or if the file has no row of the same"
              " policy and jobs"),
    "rival_mean_jct_seconds": ("s", "mean completion time under the rival"),
    "ratio": ("", "mean completion time divided by the rival's"),
    "ratio_low": ("", "95 % interval of the mean of the ratios of workloads, lower end; null with"
                  " one workload"),
    "ratio_high": ("", "upper end"),
}  # fmt: skip
REPLAY_KEYS = {
    "log": ("", "path of the log"),
    "policy": ("", "of the log"),
    "seed": ("", "of the log"),
    "first_entry": ("", "number of the first entry; above 1 if older ones were archived"),
    "events": ("", "replayed events"),
    "plans": ("", "plans that were equal"),
    "cut_off": ("", "true if a crash cut off the last line; that line is ignored"),
    "same": ("", "true if all plans were equal, byte for byte"),
    "difference": ("", "null, or the first difference: `line`, `recorded`, `replayed`"),
}
TRACE_KEYS = {
    "format": ("", "of the file: trace, philly, alibaba, pollux or run log"),
    "jobs": ("jobs", "that arrive"),
    "span_seconds": ("s", "from the first arrival to the last"),
    "mean_gap_seconds": ("s", "between arrivals; null for a single job"),
    "gap_variation": ("", "standard deviation of the gaps over their mean"),
    "one_gpu_seconds": ("s", "sum over the jobs of the time on one GPU"),
    "mean_one_gpu_seconds": ("s", "of one job"),
    **{
        f"p{q}_one_gpu_seconds": ("s", f"{q}th percentile over the jobs")
        for q in (5, 25, 50, 75, 95, 99)
    },
    "gpus": ("GPUs", "for which the load is computed"),
    "load": ("", "one-GPU seconds that arrive per GPU-second; null without a span"),
    "owners": ("", "number of owners"),
    "requested_gpus": ("jobs", "by number of requested GPUs"),
    "kinds": ("jobs", "by kind"),
    "incidents": ("", "by kind of incident"),
    "left_out": ("", "rows or jobs that could not be used"),
}


def results_page() -> str:
    row = Run(RunSpec(policy="fifo", gpus=4, jobs=2)).carry_out()
    same("keys of a run", RUN_KEYS, row)
    same("keys of a trace", TRACE_KEYS, summarize_workload(EXAMPLES / "trace.csv", 8))
    return page(
        "# Results",
        "The output of `--json`. Keys may be added; existing keys are not renamed or removed. "
        "A value that is not known is null.",
        "## Definitions",
        "- **Job completion time** (JCT): from submission to end.\n"
        "- **Execution**: the part of it in which the job holds at least one GPU, start-up and "
        "pauses included.\n"
        "- **Queueing**: the rest. The two add up to the JCT.\n"
        "- **Utilization**: GPU time in which a worker was on the GPU, over the GPU time of all "
        "nodes that were not down, from time 0 to the last event.\n"
        "- **Finish-time fairness** ρ (Themis): JCT over the expected completion time alone on an "
        "equal share of the cluster, with the best fixed size and batch. The share is GPUs / N, "
        "N the mean number of unfinished jobs while the job was in the system; with less "
        "than a GPU as its share, the job takes turns on one. Above 1, the job was treated "
        "unfairly.\n"
        "- **Mechanism**: the way a job changes size. `elastic`: a pause between two steps, "
        "about a second. `checkpoint`: a stop and a restart, tens of seconds. `native`: as the "
        "policy's own publication does it.",
        "Times are over completed jobs: those that converged, or finished their epochs. "
        "Failed, cancelled and unfinished jobs are counted, but not part of the times.",
        "## ones sim",
        "One object. `result.json` in the directory of `--out` has the same content.",
        _keys(RUN_KEYS),
        *comparison_parts(RUN_KEYS),
        "## ones demo",
        "`seconds`: of the whole demo. `jobs`: the last card of each job, as in `ones ps --json`. "
        "`live`: their "
        "`mean_jct`, `mean_queue`, `mean_exec`, `makespan`, `rescales`, `preemptions`, "
        "`pause_seconds` and `finished`. `simulated`: by policy, a row of `ones sim` for the same "
        "jobs, re-simulated from what was recorded. `kept`: the directory of `--keep`, or null.",
        "With `--simulated`: `rows`, a row of `ones sim` for each run, and `picture`, the path of "
        "the picture, or null.",
        "## ones doctor",
        "`ok`: whether there is no problem; the exit code is 1 if there is. `checks`: a list with "
        "`name`, `status` (`ok`, `note`, `warning` or `problem`), `found` and `advice`.",
        "With `--gpu` also `emulated`, whether no GPU was used, and for each check `seconds` and "
        "`details`: the last lines of output of the workers of a job that failed. `--report` "
        "writes the same to a file.",
        "With `--script`: `script`, `shape`, `title`, `elastic` (`yes`, `after changes` or `no`), "
        "`changes` (each with `line`, `found` and `do`), `guide` (a page) and `traits` (such as "
        "`ddp`, `accumulation`, `ema`).",
        "## ones top",
        "`cluster`, `jobs` and `decisions`, as in the HTTP interface.",
        "## ones trace play",
        "`jobs`: for each submitted job `job` (its name in the trace), `id` (its id in the "
        "service), `at` (seconds of the trace) and `late_seconds`. `left_out`: node events, which "
        "cannot be played. `ended`: with `--wait`, the last card of each job.",
        "## ones trace record",
        "`file` and `entries`.",
        "## ones bench sim",
        _keys(BENCH_KEYS),
        "Each row:",
        _keys(BENCH_ROW_KEYS),
        "## ones bench convergence",
        "The same frame. Measured values also have `_low` and `_high`, the lowest and the highest "
        "of all seeds. Each row:",
        _keys(CONVERGENCE_ROW_KEYS),
        "## ones bench rescale",
        "The same frame. Each row:",
        _keys(RESCALE_ROW_KEYS),
        "With `--unix`, a row also has:",
        _keys(USER_ROW_KEYS),
        "## ones bench overhead",
        "The same frame. Each row:",
        _keys(OVERHEAD_ROW_KEYS),
        "## ones bench control",
        "The same frame. Each row has some of these keys:",
        _keys(CONTROL_ROW_KEYS),
        "## ones bench fidelity",
        "The same frame. Rows of policies, and the last row with their order, have these keys. "
        "The row `calibration` has the mean of each [parameter](../fidelity.md) in ms, and the "
        "number of its samples (`_n`).",
        _keys(FIDELITY_ROW_KEYS),
        "## ones bench forecasts",
        "The same frame. The rows `live` and `simulated`:",
        _keys(FORECAST_ROW_KEYS),
        "## ones bench embed",
        "The same frame. Each row:",
        _keys(EMBED_ROW_KEYS),
        "## ones replay",
        "Exit code 0 if `same` is true, else 1.",
        _keys(REPLAY_KEYS),
        "## ones trace inspect",
        _keys(TRACE_KEYS),
        "## ones config",
        "`settings`: each setting of the simulation with its `value` and `origin`. `policies`: "
        "the same for each policy.",
    )


def _keys(keys: Mapping[str, tuple[str, str]]) -> str:
    return table(
        ["key", "unit", "what it is"],
        ([code(key), unit, meaning] for key, (unit, meaning) in keys.items()),
    )
