"""The environments, one folder each, behind one Gymnasium-style contract.

Opening an environment imports that environment only. Nothing here imports torch.
"""

from stepwell.core.renamed import renamed_names
from stepwell.envs.async_env import AsyncEnv
from stepwell.envs.base import Effect, Env
from stepwell.envs.batch import EnvBatch
from stepwell.envs.registry import find_env_type, list_env_names, make_env, read_options
from stepwell.envs.tasks import distinct_tasks, draw_tasks
from stepwell.envs.turns import Turn

__all__ = [
    "AsyncEnv",
    "Effect",
    "Env",
    "EnvBatch",
    "Turn",
    "distinct_tasks",
    "draw_tasks",
    "find_env_type",
    "list_env_names",
    "make_env",
    "read_options",
]

__getattr__ = renamed_names(__name__, {"env_names": "list_env_names", "env_type": "find_env_type"})
