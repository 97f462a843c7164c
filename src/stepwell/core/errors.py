"""Every error that Stepwell raises on purpose, by the boundary at which it arises.

`StepwellError` is the root, so that a caller can catch all of them and nothing else.
There are two kinds, and the difference decides what happens to an episode:

* The caller's mistake (`ValueError` subclasses): a wrong argument, file, model or
  configuration. The message names the field and says what to do.
* A failure while an episode ran. `AgentError` is caused by the agent and is data to
  learn from. `InfraError` is caused by the system (a dead worker, an unreachable
  engine) and must never enter a gradient.
"""

from __future__ import annotations


class StepwellError(Exception):
    """Root of every error Stepwell raises on purpose."""


class InputError(StepwellError, ValueError):
    """An argument has the wrong rank, type, length or content."""


class ConfigError(StepwellError, ValueError):
    """A setting is unknown, contradicts another, or names something that does not exist."""


class MissingPackageError(ConfigError):
    """A package that a part needs is not installed; the message has the command that installs it."""


class EncodingError(StepwellError, ValueError):
    """Stored bytes are damaged, truncated, or not written by Stepwell."""


class ModelError(StepwellError, ValueError):
    """A model or tokenizer cannot be found, opened, or used as requested."""


class RenderError(StepwellError, ValueError):
    """Messages cannot be turned into token ids faithfully with this chat template."""


class ContextLengthError(StepwellError, ValueError):
    """A prompt, with the tokens reserved for its action, exceeds the model's context."""


class WeightsError(StepwellError, ValueError):
    """Weights for an engine or policy are torn, incomplete or from another model."""


class ContractError(Exception):
    """What a user adds breaks a rule of its contract; the message says what to change."""


class ParityError(StepwellError):
    """Engine and trainer disagree about the log-probabilities of the same tokens."""


class DivergenceError(StepwellError):
    """An update is not finite or far too large; the weights were not changed."""


class AgentError(StepwellError):
    """The agent did something wrong: unparsable output, a crash in its own code."""


class InfraError(StepwellError):
    """The system failed during an episode. Counted and refilled, never trained on."""


class EngineError(InfraError):
    """The sampling engine failed or is gone."""


class ServerLostError(EngineError):
    """An inference server does not answer or hung up: its work can move to another one."""


class EnvError(InfraError):
    """The environment (its process, simulator or service) failed."""


class WorkerError(InfraError):
    """A worker process or machine died, hung or could not be reached."""


class QueueFullError(InfraError):
    """A bounded queue is full: the caller must slow down or the queue must grow."""
