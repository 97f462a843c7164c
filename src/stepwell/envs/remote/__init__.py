"""Environments that run elsewhere: hosted by `stepwell serve envs`, or served by OpenEnv."""

from stepwell.envs.remote.env import RemoteEnv, RemoteRobotEnv, make_remote_type
from stepwell.envs.remote.openenv import OpenEnv, make_openenv_type
from stepwell.envs.remote.servers import Server, Servers

__all__ = [
    "OpenEnv",
    "RemoteEnv",
    "RemoteRobotEnv",
    "Server",
    "Servers",
    "make_openenv_type",
    "make_remote_type",
]
