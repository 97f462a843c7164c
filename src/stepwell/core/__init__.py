"""The words every other part speaks: step, trajectory, task, status, errors, protocols.

Needs numpy and nothing else, so that a worker process can speak them without torch.
"""

from stepwell.core.errors import (
    AgentError,
    CancelledRequestError,
    ConfigError,
    ContextLengthError,
    DivergenceError,
    EncodingError,
    EngineError,
    EnvError,
    InfraError,
    InputError,
    ModelError,
    ParityError,
    QueueFullError,
    RenderError,
    StepwellError,
    WeightsError,
    WorkerError,
)
from stepwell.core.gaps import Errors, Gaps
from stepwell.core.ids import content_hash, hash_bytes, new_id
from stepwell.core.observation import Observation
from stepwell.core.pictures import Pictures
from stepwell.core.protocols import Critic, Request, Sampled, Sampler, SamplingParams, Scorer
from stepwell.core.robot import ArraySpec, RobotWorld
from stepwell.core.step import (
    JSON,
    Action,
    ArrayAction,
    ArrayState,
    FinishReason,
    ImageSpan,
    Sampling,
    State,
    Step,
    TokenAction,
    TokenState,
)
from stepwell.core.task import Split, Task
from stepwell.core.tools import ToolCall, ToolSchema, problem_with, random_call, read_call
from stepwell.core.trajectory import Status, Trajectory, trainable
from stepwell.core.versions import VersionSpan
from stepwell.core.world import Actions, Example, StateForm, World

__all__ = [
    "JSON",
    "Action",
    "Actions",
    "AgentError",
    "ArrayAction",
    "ArraySpec",
    "ArrayState",
    "CancelledRequestError",
    "ConfigError",
    "ContextLengthError",
    "Critic",
    "DivergenceError",
    "EncodingError",
    "EngineError",
    "EnvError",
    "Errors",
    "Example",
    "FinishReason",
    "Gaps",
    "ImageSpan",
    "InfraError",
    "InputError",
    "ModelError",
    "Observation",
    "ParityError",
    "Pictures",
    "QueueFullError",
    "RenderError",
    "Request",
    "RobotWorld",
    "Sampled",
    "Sampler",
    "Sampling",
    "SamplingParams",
    "Scorer",
    "Split",
    "State",
    "StateForm",
    "Status",
    "Step",
    "StepwellError",
    "Task",
    "TokenAction",
    "TokenState",
    "ToolCall",
    "ToolSchema",
    "Trajectory",
    "VersionSpan",
    "WeightsError",
    "WorkerError",
    "World",
    "content_hash",
    "hash_bytes",
    "new_id",
    "problem_with",
    "random_call",
    "read_call",
    "trainable",
]
