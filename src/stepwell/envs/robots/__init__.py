"""Robots: simulated environments of arrays and action chunks behind one contract (`base.RobotEnv`)."""

from stepwell.core.renamed import renamed_names
from stepwell.envs.robots.base import ActionEffect, RobotEnv, RobotOptions

__all__ = ["ActionEffect", "RobotEnv", "RobotOptions"]

__getattr__ = renamed_names(__name__, {"Moved": "ActionEffect"})
