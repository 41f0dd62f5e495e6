"""The simulator: the same brain in virtual time. How jobs really train is hidden in here."""

from ones.sim.engine import MECHANISMS, SimEngine
from ones.sim.physics import Physics
from ones.sim.run import Simulation, Simulator, mechanism_of

__all__ = ["MECHANISMS", "Physics", "SimEngine", "Simulation", "Simulator", "mechanism_of"]
