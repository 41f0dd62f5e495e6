"""results.md: the keys of what `--json` prints. A key that is not explained stops the build."""

from __future__ import annotations

from collections.abc import Mapping

from docs.reference.comparisons import comparison_parts
from docs.reference.markdown import EXAMPLES, code, page, same, table
from ones.lab.runs import Run, RunSpec
from ones.lab.workload_summary import summarize_workload

RUN_KEYS = {
    "policy": ("", "who decided"),
    "workload": ("", "`paper`, or the path of the trace"),
    "gpus": ("GPUs", "of the cluster at the start"),
    "jobs": ("jobs", "that arrive"),
    "seed": ("", "of workload, noise and policy"),
    "mechanism": ("", "`elastic` or `checkpoint`; `native` has been resolved to the policy's own"),
    "mean_jct": ("s", "mean job completion time"),
    "median_jct": ("s", "half of the jobs are done within it"),
    "p95_jct": ("s", "95 % are"),
    "p99_jct": ("s", "99 % are"),
    "mean_exec": ("s", "mean execution time"),
    "mean_queue": ("s", "mean queueing time; `mean_exec + mean_queue = mean_jct`"),
    "makespan": ("s", "from the first submission to the last completion"),
    "utilization": ("0 to 1", "share of the GPU time in which a worker was on the GPU"),
    "rescales": ("", "changes of size or batch between two steps, of all jobs"),
    "rescale_rate": ("1/h", "the same for each job and hour of running"),
    "preemptions": ("", "times that a job was stopped and went back to the queue, of all jobs"),
    "finished": ("jobs", "that completed: converged or finished"),
    "failed": ("jobs", "that failed"),
    "cancelled": ("jobs", "that were cancelled"),
    "unfinished": ("jobs", "to which nothing could happen any more"),
    "wall_seconds": ("s", "real time that the run took"),
    "policy_cpu_seconds": ("s", "of it, CPU time inside the policy"),
    "events": ("", "events from the engine; wake-ups not counted"),
    "dropped": (
        "",
        "reports that were not taken, by cause: `stale`, `duplicate`, `ended`, `unknown`",
    ),
}
BENCH_KEYS = {
    "bench": ("", "`sim`"),
    "commit": ("", "of the code that ran; null when it is installed without a checkout"),
    "load_average": ("", "of the machine, over the last minute: above 1, others were busy too"),
    "measured_at": ("", "when it ended"),
    "cores": ("", "that the process might use"),
    "rows": ("", "one for each size and kind of event"),
}
BENCH_ROW_KEYS = {
    "case": ("", "the row in words"),
    "policy": ("", "who decided"),
    "gpus": ("GPUs", "of the cluster"),
    "jobs": ("jobs", "that arrive, at a load of 1"),
    "event": ("", "`submit`, `epoch`, `end`, `other`, or `all` of them together"),
    "n": ("", "events of that kind"),
    "events_per_second": ("1/s", "null when there was none"),
    "microseconds_per_event": ("µs", "mean, with everything: engine, state, policy, plan"),
    "peak_mb": ("MB", "most memory that the process has held"),
    "wall_seconds": ("s", "of the whole case"),
    "rival": ("", "the same event on the smallest cluster; of a whole run: the first policy"),
    "rival_microseconds_per_event": ("µs", "its cost"),
    "ratio": ("", "cost over the rival's cost: what size costs"),
}
#: each measured value comes with `_low` and `_high`: the lowest and highest of all seeds
CONVERGENCE_ROW_KEYS = {
    "case": ("", "the row in words"),
    "figure": ("", "`workers` or `jump`"),
    "workers": ("", "that share a step"),
    "batches": ("samples", "of a step, by the epoch from which they hold"),
    "rule": ("", "by which the learning rate follows the batch: `linear` or `none`"),
    "ramp_steps": ("steps", "in which it follows"),
    "n": ("", "runs, each with a seed of its own"),
    "diverged": ("", "runs whose loss became infinite or undefined"),
    "final_accuracy": ("", "mean over the seeds, on held-out samples"),
    "target_accuracy": ("", "`workers` only, as the next two"),
    "reached": ("", "runs that reached it"),
    "epochs_to_target": ("epochs", "mean; runs that did not reach it count with all their epochs"),
    "loss_before": (
        "",
        "`jump` only, as the next two: training loss of the epoch before the change",
    ),
    "peak_loss": ("", "highest training loss of an epoch after it; null if a run diverged"),
    "epochs_to_recover": ("epochs", "until the loss is back where it was before the change"),
    "rival": ("", "one worker, or a batch that stays"),
    "rival_epochs_to_target": ("epochs", "of the rival, in `workers`"),
    "rival_peak_loss": ("", "of the rival, in `jump`"),
    "ratio": ("", "epochs to target, or peak loss, over the rival's"),
    "losses": (
        "",
        "`jump` only: training loss of each epoch, median over the seeds; null if not finite",
    ),
}
RESCALE_ROW_KEYS = {
    "case": ("", "the row in words"),
    "parameter_mb": ("MB", "of parameters; SGD with momentum sends twice that to newcomers"),
    "change": ("", "of workers, as `1->2`"),
    "n": ("", "changes of this kind that were measured"),
    "pause_ms": (
        "ms",
        "median, from the end of the last old step until those who stay may begin the next; the"
        " longest of them; `_low` and `_high`: the shortest and the longest change",
    ),
    "agree_ms": ("ms", "of it, in the first worker: until all know that they switch"),
    "connect_ms": ("ms", "0: the next group is connected before"),
    "state_ms": ("ms", "of it: newcomers get what they lack, leavers are seen off"),
    "resume_ms": ("ms", "of it: until the next batch is there"),
    "background_connect_ms": ("ms", "connecting the next group while training went on"),
    "background_feed_ms": ("ms", "sending state to newcomers while training went on"),
    "optimizer_held_ms": ("ms", "by which the steps meanwhile became longer, in all"),
    "slowed_ms": (
        "ms",
        "by which all steps before took longer: newcomers start on the same CPUs and are fed",
    ),
    "until_stepped_ms": ("ms", "until the first step with the new workers is complete"),
    "rival": ("", "`checkpoint`, `zygote` or `torchrun`"),
    "rival_n": ("", "changes of the rival"),
    "rival_pause_ms": ("ms", "its pause"),
    "rival_save_ms": ("ms", "of it, as the next four: not for `torchrun`"),
    "rival_stop_and_start_ms": ("ms", "old processes end, new ones begin"),
    "rival_import_and_build_ms": ("ms", ""),
    "rival_load_ms": ("ms", ""),
    "rival_connect_ms": ("ms", ""),
    "rival_until_stepped_ms": ("ms", "until its first step is complete"),
    "rival_steps_lost": ("steps", "that are made again"),
    "ratio": ("", "the rival's pause over ours"),
    "load_average": ("", "of the machine, mean over the repeats"),
}
OVERHEAD_ROW_KEYS = {
    "case": ("", "the row in words"),
    "model": ("", "`cnn`, `transformer` or `mlp`"),
    "workers": ("", "that share a step"),
    "n": ("", "pairs of blocks of steps"),
    "step_ms": ("ms", "CPU time of a step of one worker, all threads, median"),
    "wall_step_ms": ("ms", "wall time of a step, slowest worker"),
    "rival": ("", "DistributedDataParallel in its best form"),
    "rival_step_ms": ("ms", "its CPU time"),
    "rival_wall_step_ms": ("ms", "its wall time"),
    "ratio": ("", "median of the paired ratios of CPU time"),
    "overhead_percent": ("%", "the same, less one; `_low` and `_high`: 95 % interval, bootstrap"),
    "wall_overhead_percent": ("%", "of wall time, with its interval"),
    "elastic_us_per_step": ("µs", "CPU time in what only an elastic job does"),
    "load_average": ("", "of the machine, after the case"),
}
#: not every row has every key: `case` says what was measured
CONTROL_ROW_KEYS = {
    "case": ("", "the row in words"),
    "policy": ("", "who decided"),
    "n": ("", "measurements"),
    "idle_cpu_percent": ("% of a core", "of a controller that no job has reached yet"),
    "idle_mb": ("MB", "its resident memory"),
    "idle_own_mb": ("MB", "of it, what no other process could share"),
    "after_jobs_cpu_percent": ("% of a core", "of one whose jobs have ended"),
    "after_jobs_mb": ("MB", "its resident memory: the compiled search is loaded"),
    "after_jobs_own_mb": ("MB", "of it, what no other process could share"),
    "submit_to_first_step_seconds": (
        "s",
        "from a submission to the end of the first training step",
    ),
    "submit_to_first_step_seconds_high": ("s", "the longest"),
    "stream_update_ms": ("ms", "from a request to its effect in `/api/events`; median"),
    "page_update_ms": ("ms", "the same in the stream of an open page"),
    "page_update_p99_ms": ("ms", "99 % are within it"),
    "freed_to_worker_ms": ("ms", "from a slot that is free to the next job's process; median"),
    "freed_to_worker_p99_ms": ("ms", "99 % are within it"),
    "submits_per_second": ("1/s", "over HTTP, each safe when it is answered"),
    "submit_p50_ms": ("ms", "half of the submissions are answered within it"),
    "submit_p99_ms": ("ms", "99 % are"),
    "slots": ("", "of the emulated cluster"),
    "jobs": ("jobs", "on it"),
    "workers": ("", "that report"),
    "reports_per_second": ("1/s", "of all workers"),
    "decision_to_order_ms": ("ms", "from an event to its orders given, commit included; median"),
    "decision_to_order_p99_ms": ("ms", "99 % are within it"),
    "first_decision_ms": ("ms", "of the oldest that is kept: it may have loaded the search"),
    "busy_cpu_percent": ("% of a core", "of the controller meanwhile"),
    "busy_mb": ("MB", "its resident memory"),
    "busy_own_mb": ("MB", "of it, what no other process could share"),
    "events_per_second": ("1/s", "through scheduler, cards and store, with all decisions"),
    "events": ("", "in the log that a restart finds"),
    "restart_seconds": ("s", "from the start of the process to its first answer"),
    "database_mb": ("MB", "the size of that log"),
}
FIDELITY_ROW_KEYS = {
    "case": ("", "`calibration`, a policy and its mechanism, or `order`"),
    "policy": ("", "who decided"),
    "mechanism": ("", "`elastic`, or `restart`: real checkpoints and restarts"),
    "jobs": ("jobs", "of the trace"),
    "slots": ("", "CPU slots"),
    "n": ("", "jobs that were compared; of `order`, pairs of policies"),
    "mean_jct_error_percent": (
        "%",
        "of the simulated mean completion time; of `order`, the first policy's",
    ),
    "max_job_error_percent": ("%", "of the job that differs most"),
    "mean_job_error_percent": ("%", "mean over the jobs, without signs"),
    "mean_jct_seconds": ("s", "live"),
    "simulated_mean_jct_seconds": ("s", "simulated"),
    "makespan_seconds": ("s", "live"),
    "simulated_makespan_seconds": ("s", "simulated"),
    "rescales": ("", "live; also `simulated_rescales`"),
    "preemptions": ("", "live; also `simulated_preemptions`"),
    "losses": ("", "workers that died, live; also `simulated_losses`"),
    "restarts": ("", "starts of jobs beyond their first, live"),
    "job_error_percent": ("%", "of each job, with its sign: above 0, simulated too long"),
    "load_average": ("", "of the machine when it was over"),
    "live_order": ("", "of `order`: policies by mean completion time, the best first"),
    "simulated_order": ("", "the same, simulated"),
    "pairs_in_order": ("", "pairs of policies of which both say the same is better"),
}
EMBED_ROW_KEYS = {
    "case": ("", "the policy, and what a change costs"),
    "policy": ("", "who decided; `ideal` is told the truth"),
    "gpus": ("GPUs", "of the cluster"),
    "workloads": ("", "that were run"),
    "n": ("", "jobs of all of them"),
    "tick_seconds": ("s", "between two decisions"),
    "cost_seconds": ("s", "that a job stands still at each change"),
    "mean_jct_seconds": ("s", "mean completion time of all jobs"),
    "mean_jct_seconds_each": ("s", "a list: of each workload"),
    "median_jct_seconds": ("s", "half of the jobs are done within it"),
    "p99_jct_seconds": ("s", "99 % are"),
    "rescales": ("", "changes of size or batch"),
    "preemptions": ("", "times that a job was sent away"),
    "policy_cpu_seconds": ("s", "CPU time of the scheduler"),
    "rival": ("", "`ideal`; null in its own row"),
    "rival_mean_jct_seconds": ("s", "mean completion time under it"),
    "ratio": ("", "how many times that the policy takes"),
}
REPLAY_KEYS = {
    "log": ("", "the path"),
    "policy": ("", "of the log"),
    "seed": ("", "of the log"),
    "first_entry": ("", "number of its first entry; above 1 if older ones were archived"),
    "events": ("", "that were played"),
    "plans": ("", "that were the same"),
    "cut_off": ("", "true if the last line was cut off by a crash; it was left out"),
    "same": ("", "true if every plan was the same, byte for byte"),
    "difference": ("", "null, or the first one: `line`, `recorded`, `replayed`"),
}
TRACE_KEYS = {
    "format": ("", "of the file: trace, philly, alibaba, pollux or run log"),
    "jobs": ("jobs", "that arrive"),
    "span_seconds": ("s", "from the first arrival to the last"),
    "mean_gap_seconds": ("s", "between arrivals; null for a single job"),
    "gap_variation": ("", "standard deviation of the gaps over their mean"),
    "one_gpu_seconds": ("s", "that all the jobs would take on one GPU each, added up"),
    "mean_one_gpu_seconds": ("s", "of one job"),
    **{
        f"p{q}_one_gpu_seconds": ("s", f"no more than this for {q} % of the jobs")
        for q in (5, 25, 50, 75, 95, 99)
    },
    "gpus": ("GPUs", "that the load is told for"),
    "load": ("", "one-GPU seconds that arrive per GPU-second; null without a span"),
    "owners": ("", "how many"),
    "requested_gpus": ("jobs", "by the number of GPUs they ask for"),
    "kinds": ("jobs", "by kind"),
    "incidents": ("", "by what happens"),
    "left_out": ("", "rows or jobs that could not be used"),
}


def results_page() -> str:
    row = Run(RunSpec(policy="fifo", gpus=4, jobs=2)).carry_out()
    same("keys of a run", RUN_KEYS, row)
    same("keys of a trace", TRACE_KEYS, summarize_workload(EXAMPLES / "trace.csv", 8))
    return page(
        "# Results",
        "What `--json` prints. Keys are a promise: they are added, and not renamed or removed. "
        "Where nothing can be said the value is null.",
        "## What is measured",
        "- **Job completion time** (JCT): from submission to end.\n"
        "- **Execution**: the part of it in which the job holds at least one GPU, start-up and "
        "pauses included.\n"
        "- **Queueing**: the rest. The two add up to the JCT.\n"
        "- **Utilization**: GPU time in which a worker was on the GPU, over the GPU time of all "
        "nodes that were not down, from time 0 to the last event.\n"
        "- **Mechanism**: how a change of size is paid for. `elastic`: a pause between two steps, "
        "about a second. `checkpoint`: a stop and a restart, tens of seconds. `native`: as the "
        "policy's own publication does it.",
        "Times of jobs are over completed ones: those that converged, or finished their epochs. "
        "Failed, cancelled and unfinished jobs are counted and left out of the times.",
        "## ones sim",
        "One object. `result.json` in the directory of `--out` holds the same.",
        _keys(RUN_KEYS),
        *comparison_parts(RUN_KEYS),
        "## ones demo",
        "`seconds`: of all. `jobs`: the last card of each, as in `ones ps --json`. `live`: their "
        "`mean_jct`, `mean_queue`, `mean_exec`, `makespan`, `rescales`, `preemptions`, "
        "`pause_seconds` and `finished`. `simulated`: by policy, a row of `ones sim` for the same "
        "jobs, re-simulated from what was recorded. `kept`: the directory of `--keep`, or null.",
        "With `--simulated`: `rows`, a row of `ones sim` for each run, and `picture`, the path of "
        "the picture, or null.",
        "## ones doctor",
        "`ok`: whether there is no problem; the exit code is 1 if there is. `checks`: a list with "
        "`name`, `status` (`ok`, `note`, `warning` or `problem`), `found` and `advice`.",
        "## ones top",
        "`cluster`, `jobs` and `decisions`, as the HTTP interface gives them.",
        "## ones trace play",
        "`jobs`: for each that was submitted `job` (as the trace calls it), `id` (as the service "
        "does), `at` (seconds of the trace) and `late_seconds`. `left_out`: events of nodes, which "
        "cannot be played. `ended`: with `--wait`, the last card of each job.",
        "## ones trace record",
        "`file` and `entries`.",
        "## ones bench sim",
        _keys(BENCH_KEYS),
        "Each row:",
        _keys(BENCH_ROW_KEYS),
        "## ones bench convergence",
        "The same frame. Each row, where measured values have `_low` and `_high` beside them, the "
        "lowest and the highest of all seeds:",
        _keys(CONVERGENCE_ROW_KEYS),
        "## ones bench rescale",
        "The same frame. Each row:",
        _keys(RESCALE_ROW_KEYS),
        "## ones bench overhead",
        "The same frame. Each row:",
        _keys(OVERHEAD_ROW_KEYS),
        "## ones bench control",
        "The same frame. Each row has some of these:",
        _keys(CONTROL_ROW_KEYS),
        "## ones bench fidelity",
        "The same frame. Rows of policies, and the last one, which tells their order, have these. "
        "The row `calibration` has the mean of each parameter in ms, and how many (`_n`); "
        "[what they are](../fidelity.md).",
        _keys(FIDELITY_ROW_KEYS),
        "## ones bench embed",
        "The same frame. Each row:",
        _keys(EMBED_ROW_KEYS),
        "## ones replay",
        "Exit code 0 if `same` is true, 1 if it is not.",
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
        ([code(key), unit, told] for key, (unit, told) in keys.items()),
    )
