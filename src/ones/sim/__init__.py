"""The simulator: the scheduler in virtual time, and the model of how jobs train."""

from ones.sim.engine import MECHANISMS, SimEngine
from ones.sim.kinds import KindPhysics
from ones.sim.physics import JobPhysics
from ones.sim.run import Simulation, Simulator, mechanism_of

__all__ = [
    "MECHANISMS",
    "JobPhysics",
    "KindPhysics",
    "SimEngine",
    "Simulation",
    "Simulator",
    "mechanism_of",
]
