from __future__ import annotations

from ones.control.live.action_runner import members_by_age
from ones.control.live.jobs import LiveJob, LiveWorker
from ones.control.submission import Submission
from ones.core.cluster import Gpu, NodeId
from ones.core.job import JobId
from ones.core.schedule import Allocation


def test_the_worker_that_has_been_there_longest_is_the_first_member() -> None:
    """A worker that joins on a lower GPU does not become the main one."""
    job = LiveJob(JobId("a-1"), Submission(name="a", argv=("true",), cwd="/"))
    for index, plan in ((0, 7), (2, 3), (3, 3)):
        gpu = Gpu(NodeId("n0"), index)
        job.workers[f"w{index}"] = LiveWorker(f"w{index}", (gpu,), plan)
    gone = LiveWorker("w9", (Gpu(NodeId("n0"), 0),), 1, alive=False)
    job.workers["w9"] = gone
    allocation = Allocation.even([Gpu(NodeId("n0"), index) for index in (0, 2, 3)], 12)
    members = members_by_age(job, allocation)
    assert [member.worker for member in members] == ["n0/2", "n0/3", "n0/0"]
