"""Robots: simulated environments of arrays and action chunks behind one contract (`base.RobotEnv`)."""

from stepwell.envs.robots.base import ActionEffect, RobotEnv, RobotOptions

__all__ = ["ActionEffect", "RobotEnv", "RobotOptions"]
