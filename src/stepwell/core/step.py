"""The step: one decision of an agent, exactly as it was taken.

A step holds what the policy saw (`state`), what it emitted (`action`), the
log-probability of every unit of that action under the weights that sampled it, and
its reward. It is the unit of data, credit and ratio everywhere in Stepwell.

Invariants
* `prompt_ids` and `action_ids` are the ids the engine saw and sampled. Nothing here is
  ever decoded and encoded again.
* `action_ids` include the end token, or the token that completed a stop string.
* `behavior_logprobs` has one value per action unit (token, action dimension or
  denoising transition), or is empty when the behaviour policy is unknown
  (demonstrations), never something in between.
* `reward is None` means not yet assigned; 0.0 means assigned zero.
* Arrays are read-only: a record does not change after it was made, except for the
  reward, which arrives later.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.core import arrays
from stepwell.core.arrays import AnyArray, FloatArray, IntArray
from stepwell.core.errors import InputError
from stepwell.core.ids import is_content_hash
from stepwell.core.versions import VersionSpan

JSON = None | bool | int | float | str | list["JSON"] | dict[str, "JSON"]


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """The place of an image in `prompt_ids`: placeholder tokens [start, start + length).

    `image` is the content hash of the pixels in the blob store. So two prompts share a
    prefix exactly when they show the same images.
    """

    image: str
    start: int
    length: int

    def __post_init__(self) -> None:
        if not is_content_hash(self.image):
            raise InputError(f"images: {self.image!r} is not a content hash; store the image first")
        if self.start < 0 or self.length < 1:
            raise InputError(f"images: span start {self.start}, length {self.length} is empty or negative")


@dataclass(frozen=True, slots=True, eq=False)
class TokenState:
    """What a language policy saw: the exact prompt ids, and which of them are images."""

    prompt_ids: IntArray
    images: tuple[ImageSpan, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt_ids", arrays.token_ids(self.prompt_ids, "prompt_ids"))
        if self.prompt_ids.size == 0:
            raise InputError("prompt_ids is empty; a policy needs at least one token")
        end = 0
        for span in self.images:
            if span.start < end:
                raise InputError(f"images: span at {span.start} overlaps the previous one or is out of order")
            end = span.start + span.length
        if end > self.prompt_ids.size:
            raise InputError(f"images: a span ends at {end}, past the {self.prompt_ids.size} prompt_ids")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenState):
            return NotImplemented
        return arrays.equal(self.prompt_ids, other.prompt_ids) and self.images == other.images


@dataclass(frozen=True, slots=True, eq=False)
class ArrayState:
    """What a robot policy saw: named arrays (camera images, proprioception, ...)."""

    arrays: dict[str, AnyArray]
    instruction: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "arrays", _name_arrays(self.arrays, "state.arrays"))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ArrayState):
            return NotImplemented
        return self.instruction == other.instruction and _have_same_arrays(self.arrays, other.arrays)


@dataclass(frozen=True, slots=True, eq=False)
class TokenAction:
    """What a language policy emitted: the sampled ids, and their text for people."""

    action_ids: IntArray
    text: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "action_ids", arrays.token_ids(self.action_ids, "action_ids"))

    @property
    def num_units(self) -> int:
        return int(self.action_ids.size)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenAction):
            return NotImplemented
        return arrays.equal(self.action_ids, other.action_ids) and self.text == other.text


@dataclass(frozen=True, slots=True, eq=False)
class ArrayAction:
    """What a robot policy emitted: an action chunk, and the draws its logprobs refer to.

    `chunk` is [C, D], the actions that the environment executes. `draws` holds what was
    sampled if that is not the chunk itself: {"bins": [C, D]} for a token head,
    {"chain": [K + 1, C, D]} for a flow head (the denoising states, whose K transitions are
    then the units). `num_units` is the number of logprobs of the step.
    """

    chunk: AnyArray
    num_units: int
    draws: dict[str, AnyArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        chunk = arrays.freeze(np.asarray(self.chunk))
        if chunk.ndim != 2 or chunk.dtype.kind not in "fiu":
            raise InputError(f"action.chunk must be [C, D] numbers, got {chunk.dtype} of rank {chunk.ndim}")
        if self.num_units < 0:
            raise InputError(
                f"action.num_units is {self.num_units}; it counts logprobs and cannot be negative"
            )
        object.__setattr__(self, "chunk", chunk)
        object.__setattr__(self, "draws", _name_arrays(self.draws, "action.draws"))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ArrayAction):
            return NotImplemented
        same_chunk = self.num_units == other.num_units and arrays.equal(self.chunk, other.chunk)
        return same_chunk and _have_same_arrays(self.draws, other.draws)


@dataclass(frozen=True, slots=True)
class TextState:
    """What an outside model saw. Its tokens are unknown; the messages are in the step's `info`."""


@dataclass(frozen=True, slots=True)
class TextAction:
    """What an outside model replied. It has no units, so it cannot be trained on."""

    text: str = ""

    @property
    def num_units(self) -> int:
        return 0


State = TokenState | ArrayState | TextState
Action = TokenAction | ArrayAction | TextAction
_NO_LOGPROBS: FloatArray = np.zeros(0, dtype=np.float32)
_PAIRS: dict[type, type] = {TokenState: TokenAction, ArrayState: ArrayAction, TextState: TextAction}


class FinishReason(StrEnum):
    """Why sampling of an action ended."""

    STOP = "stop"  # the end token, or a stop string
    LENGTH = "length"  # the token limit
    CANCELLED = "cancelled"
    GIVEN = "given"  # not sampled: a demonstration or the text of an outside model


@dataclass(frozen=True, slots=True)
class Sampling:
    """How an action was sampled. The trainer divides logits by the same temperature.

    Temperature 0 is greedy decoding; its logprobs are those of the unscaled
    distribution (temperature 1), because the scaled one has no width.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    finish_reason: FinishReason = FinishReason.STOP

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise InputError(f"temperature must be a finite number >= 0, got {self.temperature}")
        if not 0.0 < self.top_p <= 1.0:
            raise InputError(f"top_p must be in (0, 1], got {self.top_p}")

    @property
    def logit_temperature(self) -> float:
        """The divisor of the logits before logprobs are computed."""
        return self.temperature if self.temperature > 0.0 else 1.0


@dataclass(slots=True)
class Step:
    """One decision: state, action, its behaviour logprobs, and its reward.

    A two-token answer to a three-token prompt, sampled under version 7:

    >>> step = Step.from_tokens([1, 2, 3], [4, 5], behavior_logprobs=[-0.1, -0.7], policy_version=7)
    >>> step.num_units, step.policy_version.last, step.reward
    (2, 7, None)
    """

    state: State
    action: Action
    behavior_logprobs: FloatArray
    reward: float | None = None
    reward_parts: dict[str, float] = field(default_factory=dict)
    sampling: Sampling = field(default_factory=Sampling)
    policy_version: VersionSpan = field(default_factory=lambda: VersionSpan.at(0))
    anchor: str | None = None
    info: dict[str, JSON] = field(default_factory=dict)
    position_mark: int | None = None
    """Of the positions at which the engine read prompt and action, to be compared with the trainer's."""

    def __post_init__(self) -> None:
        if not isinstance(self.action, _PAIRS[type(self.state)]):
            raise InputError("state and action of a step must be of one kind: Token, Array or Text")
        self.behavior_logprobs = arrays.log_probs(self.behavior_logprobs, "behavior_logprobs")
        count = self.behavior_logprobs.size
        if count not in (0, self.action.num_units):
            raise InputError(
                f"behavior_logprobs has {count} values for {self.action.num_units} action units; "
                "give one per unit, or none when the behaviour policy is unknown"
            )
        if self.reward is not None and not np.isfinite(self.reward):
            raise InputError(f"reward is {self.reward}; it must be finite, or None while unassigned")

    @classmethod
    def from_tokens(
        cls,
        prompt_ids: Iterable[int] | npt.NDArray[Any],
        action_ids: Iterable[int] | npt.NDArray[Any],
        *,
        behavior_logprobs: Iterable[float] | npt.NDArray[Any] = (),
        text: str = "",
        reward: float | None = None,
        sampling: Sampling | None = None,
        policy_version: int | VersionSpan = 0,
        images: tuple[ImageSpan, ...] = (),
        anchor: str | None = None,
    ) -> Step:
        """A step of a language policy from plain lists. An empty action is value-only."""
        version = (
            policy_version if isinstance(policy_version, VersionSpan) else VersionSpan.at(policy_version)
        )
        return cls(
            state=TokenState(arrays.token_ids(prompt_ids, "prompt_ids"), images),
            action=TokenAction(arrays.token_ids(action_ids, "action_ids"), text),
            behavior_logprobs=arrays.log_probs(behavior_logprobs, "behavior_logprobs"),
            reward=reward,
            sampling=sampling or Sampling(),
            policy_version=version,
            anchor=anchor,
        )

    @classmethod
    def from_text(cls, text: str, sampling: Sampling, info: dict[str, JSON] | None = None) -> Step:
        """A step of an outside model, of which only the text is known."""
        return cls(TextState(), TextAction(text), _NO_LOGPROBS, sampling=sampling, info=info or {})

    @property
    def num_units(self) -> int:
        """Number of action tokens, action dimensions or transitions: the units of credit and ratio."""
        return self.action.num_units

    @property
    def is_summary(self) -> bool:
        """Whether the action is the policy's summary of earlier turns, which no environment sees."""
        return "summary" in self.info

    def assign_reward(self, parts: Mapping[str, float]) -> None:
        """Set the reward as the sum of its named parts."""
        self.reward_parts = {name: float(value) for name, value in parts.items()}
        for name, value in self.reward_parts.items():
            if not math.isfinite(value):
                raise InputError(f"reward part {name!r} is {value}; rewards must be finite")
        self.reward = float(sum(self.reward_parts.values()))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Step):
            return NotImplemented
        return arrays.equal(self.behavior_logprobs, other.behavior_logprobs) and all(
            getattr(self, name) == getattr(other, name)
            for name in (
                "state", "action", "reward", "reward_parts", "sampling", "policy_version", "anchor", "info",
            )
        )  # fmt: skip


def _name_arrays(named: Mapping[str, AnyArray], field_name: str) -> dict[str, AnyArray]:
    result = {}
    for name, value in named.items():
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise InputError(f"{field_name}[{name!r}] has dtype {array.dtype}; numbers and booleans only")
        result[name] = arrays.freeze(array)
    return result


def _have_same_arrays(a: Mapping[str, AnyArray], b: Mapping[str, AnyArray]) -> bool:
    return a.keys() == b.keys() and all(arrays.equal(a[name], b[name]) for name in a)
