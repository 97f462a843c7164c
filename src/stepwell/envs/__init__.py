"""The environments, one folder each, behind one Gymnasium-style contract.

Opening an environment imports that environment only. Nothing here imports torch.
"""

from stepwell.envs.async_env import AsyncEnv
from stepwell.envs.base import Effect, Env
from stepwell.envs.batch import EnvBatch
from stepwell.envs.registry import find_env_type, list_env_names, make_env, read_options
from stepwell.envs.tasks import draw_tasks, list_distinct_tasks
from stepwell.envs.turns import Turn

__all__ = [
    "AsyncEnv",
    "Effect",
    "Env",
    "EnvBatch",
    "Turn",
    "draw_tasks",
    "find_env_type",
    "list_distinct_tasks",
    "list_env_names",
    "make_env",
    "read_options",
]
