"""Robots: simulated environments of arrays and action chunks behind one contract (`base.RobotEnv`)."""

from stepwell.envs.robots.base import Moved, RobotEnv, RobotOptions

__all__ = ["Moved", "RobotEnv", "RobotOptions"]
