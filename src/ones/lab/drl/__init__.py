"""Training of the learned rival: episodes on the simulator, a teacher, two learners."""

from ones.lab.drl.learners import LEARNERS
from ones.lab.drl.training import TrainingPlan, TrainingStatus, train

__all__ = ["LEARNERS", "TrainingPlan", "TrainingStatus", "train"]
