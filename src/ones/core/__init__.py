"""The scheduler of ONES, without input and output: events go in, plans come out.

The core reads no clock, file or socket, starts no thread and draws no random numbers; time is a
field of each event. Start reading at `scheduler`.
"""

from ones.core.actions import adopt
from ones.core.cluster import Cluster, Gpu, Node, NodeId, NodeState
from ones.core.engine import Engine, ScriptedEngine, drive
from ones.core.events import Event
from ones.core.job import (
    Configuration,
    Dependency,
    Description,
    EndReason,
    Forecast,
    Generation,
    Job,
    JobId,
    Progress,
    StepTime,
    SwitchCost,
)
from ones.core.lifecycle import Phase
from ones.core.plan import Action, Plan, PlanAdopted, diff
from ones.core.policy import Decision, Policy, check
from ones.core.record import Outcome
from ones.core.schedule import Allocation, Schedule, Worker
from ones.core.scheduler import Scheduler
from ones.core.state import State
from ones.core.transitions import apply
from ones.core.view import JobView, View

__all__ = [
    "Action",
    "Allocation",
    "Cluster",
    "Configuration",
    "Decision",
    "Dependency",
    "Description",
    "EndReason",
    "Engine",
    "Event",
    "Forecast",
    "Generation",
    "Gpu",
    "Job",
    "JobId",
    "JobView",
    "Node",
    "NodeId",
    "NodeState",
    "Outcome",
    "Phase",
    "Plan",
    "PlanAdopted",
    "Policy",
    "Progress",
    "Schedule",
    "Scheduler",
    "ScriptedEngine",
    "State",
    "StepTime",
    "SwitchCost",
    "View",
    "Worker",
    "adopt",
    "apply",
    "check",
    "diff",
    "drive",
]
