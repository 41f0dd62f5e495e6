"""Carries out the actions of a plan: launches workers and gives them orders.

For a start or a rescale the missing workers are launched first. Once all have joined, all get the
same `Switch`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from types import MappingProxyType

from ones.control.live.jobs import NOW, LiveJob, LiveWorker, OrderProgress, launch_id
from ones.control.live.live_state import LiveState
from ones.control.live.node_layout import NodeLayout
from ones.control.persistence import ProcessesForgotten
from ones.core import events as ev
from ones.core.cluster import Gpu
from ones.core.job import EndReason, Generation
from ones.core.plan import Action, Finish, Prepare, Rescale, Start, Stop, Withdraw
from ones.core.record import JobRecord
from ones.core.schedule import Allocation
from ones.exec import snapshot
from ones.launchers import Launch, SupportsPrepare
from ones.wire import messages as wire
from ones.wire.environment import WorkerEnvironment

NO_DEFAULTS: Mapping[str, str] = MappingProxyType({})


class ActionRunner:
    def __init__(self, live: LiveState) -> None:
        self._live = live

    def begin(self, action: Action, plan: int) -> None:
        live = self._live
        job = live.jobs.get(action.job)
        if job is None or job.end_reported:
            if isinstance(action, Start | Rescale):
                self._release_unused(job, action, plan)
            return
        match action:
            case Start():
                self._gather(job, plan, action.allocation)
            case Rescale():
                if live.is_elastic(job):
                    self._gather(job, plan, action.allocation)
                else:
                    why = "it cannot be rescaled: its script has not called ones.join"
                    live.emit(ev.RescaleFailed(NOW, job.id, Generation(plan), why))
            case Stop():
                self._stop(job, plan)
            case Finish():
                self._finish(job, plan, action.reason, action.message)
            case Prepare():
                self._warm_up(job, plan, action.allocation)
            case Withdraw():
                pass  # a worker that waits for a Switch in vain ends by itself

    def _release_unused(self, job: LiveJob | None, action: Start | Rescale, plan: int) -> None:
        """Release the GPUs that count as occupied by a job that has ended: it has no worker there
        that could report that it leaves."""
        present = job.present() if job is not None else set()
        for gpu in action.allocation.gpus:
            if gpu not in present:
                self._live.emit(ev.WorkerLeft(NOW, action.job, Generation(plan), gpu))

    # start and rescale

    def _gather(self, job: LiveJob, plan: int, allocation: Allocation) -> None:
        """Launch the missing workers."""
        live = self._live
        # a job that took long to join once will again
        seconds = max(live.timeouts.join_seconds, 3 * job.join_seconds)
        job.progress = OrderProgress(plan, live.clock.now() + seconds)
        # where a worker exited as if the job were done, that is decided first (`quiet_seconds`)
        present = job.present() | {gpu for worker in job.quiet for gpu in worker.gpus}
        missing = [gpu for gpu in allocation.gpus if gpu not in present]
        if live.is_elastic(job):
            for gpu in missing:
                self._launch(job, plan, (gpu,))
            self.publish_if_all_joined(job)
        elif missing:
            job.progress.deadline = inf
            layout = self._layout(job, plan, allocation)
            for node in {gpu.node: None for gpu in missing}:
                there = tuple(gpu for gpu in missing if gpu.node == node)
                self._launch(job, plan, there, layout.environment(node))

    def _layout(self, job: LiveJob, plan: int, allocation: Allocation) -> NodeLayout:
        hosts = {slot.node: slot.host for slot in self._live.launcher.slots()}
        return NodeLayout.of(allocation.gpus, hosts, plan)

    def _launch(
        self,
        job: LiveJob,
        plan: int,
        gpus: tuple[Gpu, ...],
        defaults: Mapping[str, str] = NO_DEFAULTS,
    ) -> None:
        live = self._live
        if live.winding_down:
            return  # the order is in the log: the next controller begins it again
        if gpus[0].node in live.gone_nodes:
            return  # the order fails with its node
        launch = self.launch_for(job, plan, gpus, defaults)
        # registered before it starts: a worker may report at once, and an unknown worker must exit
        job.workers[launch.id] = LiveWorker(launch.id, gpus, plan, since=live.clock.now())
        try:
            live.launcher.launch(launch)
        except BaseException:
            del job.workers[launch.id]
            raise

    def _warm_up(self, job: LiveJob, plan: int, allocation: Allocation) -> None:
        """Load torch on the nodes of joining workers while other jobs leave their GPUs. The script
        itself starts when the GPUs are free, because it may use them before it joins."""
        launcher = self._live.launcher
        if self._live.winding_down or not isinstance(launcher, SupportsPrepare):
            return
        there = {gpu.node for gpu in job.present()}
        for node in {gpu.node: gpu for gpu in allocation.gpus if gpu.node not in there}.values():
            launch = self.launch_for(job, plan, (node,))
            if launch.zygote:
                launcher.prepare(launch)

    def launch_for(
        self,
        job: LiveJob,
        plan: int,
        gpus: tuple[Gpu, ...],
        defaults: Mapping[str, str] = NO_DEFAULTS,
    ) -> Launch:
        """`defaults`: variables that those of the submission replace."""
        submission, deps = job.submission, self._live.deps
        elastic = self._live.is_elastic(job)
        record = self._live.record(job)
        environment = WorkerEnvironment(
            controller=deps.url,
            token=deps.tokens.of(job.id),
            job=job.id,
            worker=str(gpus[0]),
            plan=plan,
            run_dir="",  # the launcher sets these two
            job_dir="",
            checkpoints=f"{deps.checkpoints}/{job.id}",
            authority=deps.authority,
            steps_done=record.steps + record.epoch_steps if record is not None else 0,
        )
        if elastic:
            env = {**submission.env, **environment.to_env()}
        else:
            env = {**defaults, **submission.env, **environment.to_progress_env()}
        env[snapshot.SUBMIT_DIR] = submission.cwd
        if submission.snapshot:
            env[snapshot.DIGEST], env[snapshot.ROOT] = submission.snapshot, submission.root
        return Launch(
            id=launch_id(job.id, plan, gpus),
            job=job.id,
            slots=tuple(map(str, gpus)),
            argv=submission.argv,
            cwd=submission.cwd,
            env=env,
            grace_seconds=self._live.timeouts.grace_seconds,
            zygote=elastic and submission.elastic is True,
            user=submission.unix or deps.unix_of(record.job.owner if record is not None else ""),
        )

    def publish_if_all_joined(self, job: LiveJob) -> None:
        """Send the `Switch` of a start or a rescale, once no worker is missing."""
        record = self._live.record(job)
        order = record.in_flight if record is not None else None
        if record is None or order is None or order.allocation is None:
            return
        if not job.published(order.plan):
            known = record.description
            base_batch = known.base_batch if known is not None else order.allocation.batch
            self._publish(job, order.plan, order.allocation, base_batch)

    def publish_late(self, job: LiveJob, plan: int, record: JobRecord, joined: wire.Joined) -> None:
        """Send a `Switch` to a late worker of a job that was taken for a fixed-size job.

        The worker trains on the GPU that it has, until the policy makes another plan.
        """
        if record.in_flight is None and record.held is not None:
            allocation = record.held.resolved(joined.base_batch, joined.max_local_batch)
            self._publish(job, plan, allocation, joined.base_batch)
            if job.progress is not None and job.published(plan):
                job.progress.late = True

    def _publish(self, job: LiveJob, plan: int, allocation: Allocation, base_batch: int) -> None:
        live = self._live
        there = {gpu for w in job.workers.values() if w.alive and w.joined for gpu in w.gpus}
        if not there.issuperset(allocation.gpus) or not live.deps.may_switch(plan):
            return
        switch = wire.Switch(
            plan=plan,
            members=members_by_age(job, allocation),
            batch=allocation.batch,
            base_batch=base_batch,
        )
        deadline = live.clock.now() + live.timeouts.switch_seconds
        job.progress = OrderProgress(plan, deadline, published=True)
        members = set(allocation.gpus)
        for worker in job.workers.values():
            worker.leaving |= worker.gpus[0] not in members
            live.mailbox.put(worker.launch, switch)

    def give_up_rescale(self, job: LiveJob, reason: str) -> None:
        """The job continues as before: joining workers leave, leaving workers stay."""
        order = self._live.order(job)
        assert order is not None
        job.progress = None
        for worker in job.workers.values():
            worker.leaving = worker.plan == order.plan
            if worker.leaving:
                worker.parted = True  # it never trained
                self._live.stop(worker)
        self._live.emit(ev.RescaleFailed(NOW, job.id, Generation(order.plan), reason))

    # stop and end

    def _stop(self, job: LiveJob, plan: int) -> None:
        live = self._live
        job.progress = OrderProgress(plan, live.clock.now() + live.timeouts.checkpoint_seconds)
        for worker in job.workers.values():
            self._order_to_leave(worker, wire.CheckpointAndLeave(plan))

    def _finish(self, job: LiveJob, plan: int, reason: EndReason, message: str) -> None:
        live = self._live
        self.end(job, plan)
        live.emit(ev.JobEnded(NOW, job.id, reason, message))
        quiet, job.quiet = job.quiet, []
        for worker in quiet:  # whether the job was done does not matter any more
            for gpu in worker.gpus:
                generation = live.newest_generation(job, worker)
                live.emit(ev.WorkerLeft(NOW, job.id, generation, gpu))
        for worker in job.workers.values():
            self._order_to_leave(worker, wire.End(reason.value, plan))

    def _order_to_leave(self, worker: LiveWorker, order: wire.Order) -> None:
        worker.leaving = True
        if worker.joined:
            self._live.mailbox.put(worker.launch, order)
        else:
            self._live.stop(worker)

    def end(self, job: LiveJob, plan: int = 0) -> None:
        """End a job: its workers get some time to leave. The caller emits `JobEnded`."""
        job.end_reported = True
        deadline = self._live.clock.now() + self._live.timeouts.end_seconds
        job.progress = OrderProgress(plan, deadline)
        if not job.workers:
            self.forget(job)

    def forget(self, job: LiveJob) -> None:
        """Forget a job without processes. The launcher drops the exits of its workers after the
        end of the job is stored: until then a restarted controller needs them."""
        live = self._live
        live.jobs.pop(job.id, None)

        def safe(problem: Exception | None) -> None:
            if problem is None:
                live.launcher.forget(job.id)

        def write() -> None:
            live.store.write(operations=[ProcessesForgotten(job.id)], done=safe)

        live.post(write)  # after the events: tasks wait until all are delivered


def members_by_age(job: LiveJob, allocation: Allocation) -> tuple[wire.Member, ...]:
    """The members of a switch. The worker that has been there longest comes first: it is the main
    one, which prints, reports and writes files."""
    started = {gpu: w.plan for w in job.workers.values() if w.alive for gpu in w.gpus}
    return tuple(
        wire.Member(worker=str(w.gpu), batch=w.batch, micro_steps=w.micro_steps)
        for w in sorted(allocation.workers, key=lambda w: started[w.gpu])
    )
