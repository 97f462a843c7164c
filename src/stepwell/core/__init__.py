"""The shared types: step, trajectory, task, status, errors, protocols.

Needs numpy only, so that a worker process can import it without torch.
"""

from stepwell.core.env_description import ActionSpace, EnvDescription, ExampleTurn, StateForm
from stepwell.core.errors import (
    AgentError,
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
    ServerLostError,
    StepwellError,
    WeightsError,
    WorkerError,
)
from stepwell.core.ids import hash_bytes, hash_content, make_id
from stepwell.core.images import ImageStore
from stepwell.core.logprob_gaps import LogprobErrors, LogprobGaps
from stepwell.core.observation import Observation
from stepwell.core.outcome import Outcome, OutcomeSource
from stepwell.core.protocols import Critic, Request, Sampled, Sampler, SamplingParams, Scorer
from stepwell.core.robot_description import ArraySpec, RobotEnvDescription
from stepwell.core.state_vocabulary import StateVocabulary
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
    TextAction,
    TextState,
    TokenAction,
    TokenState,
)
from stepwell.core.task import UNCHECKED_TAG, Split, Task, TaskRelation
from stepwell.core.tools import ToolCall, ToolSchema, draw_random_call, find_call_problem, read_call
from stepwell.core.trajectory import Status, Trajectory, select_trainable
from stepwell.core.versions import VersionSpan

__all__ = [
    "JSON",
    "UNCHECKED_TAG",
    "Action",
    "ActionSpace",
    "AgentError",
    "ArrayAction",
    "ArraySpec",
    "ArrayState",
    "ConfigError",
    "ContextLengthError",
    "Critic",
    "DivergenceError",
    "EncodingError",
    "EngineError",
    "EnvDescription",
    "EnvError",
    "ExampleTurn",
    "FinishReason",
    "ImageSpan",
    "ImageStore",
    "InfraError",
    "InputError",
    "LogprobErrors",
    "LogprobGaps",
    "ModelError",
    "Observation",
    "Outcome",
    "OutcomeSource",
    "ParityError",
    "QueueFullError",
    "RenderError",
    "Request",
    "RobotEnvDescription",
    "Sampled",
    "Sampler",
    "Sampling",
    "SamplingParams",
    "Scorer",
    "ServerLostError",
    "Split",
    "State",
    "StateForm",
    "StateVocabulary",
    "Status",
    "Step",
    "StepwellError",
    "Task",
    "TaskRelation",
    "TextAction",
    "TextState",
    "TokenAction",
    "TokenState",
    "ToolCall",
    "ToolSchema",
    "Trajectory",
    "VersionSpan",
    "WeightsError",
    "WorkerError",
    "draw_random_call",
    "find_call_problem",
    "hash_bytes",
    "hash_content",
    "make_id",
    "read_call",
    "select_trainable",
]
