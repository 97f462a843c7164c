"""A LeRobot policy as a sampler, for evaluation and data collection in our environments.

    sampler = LeRobotSampler.from_pretrained("path/to/policy", chunk=5)
    Rollout(envs, RobotPlayer("metaworld"), sampler)

A batch uses LeRobot's keys: `observation.state` (proprioception), `observation.environment_state` (our array
`state`, the true positions), one `observation.images.NAME` per camera ([B, 3, H, W] in [0, 1]) and `task`
(the instructions). `rename` gives an array another name; number arrays with the same name are concatenated in
order. Actions come from `predict_action_chunk` and are cut to `chunk`. A policy without that method is called
by `select_action` after a `reset`, one action at a time, so that no answer depends on earlier requests.
Policies that need a history of observations are not supported.

Samples have no logprobs, so such a policy cannot be trained here. Its actions count as given actions and can
be imitated. Tested with ACT of LeRobot 0.4.4 (`make test-extra-lerobot`). Only `from_pretrained` imports the
package.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepwell.core import (
    ArrayAction,
    ArrayState,
    ConfigError,
    EngineError,
    FinishReason,
    Request,
    Sampled,
    Sampling,
)
from stepwell.core.versions import VersionSpan
from stepwell.packing.arrays import stack_states

STATE, ENV_STATE = "observation.state", "observation.environment_state"
IMAGES, TASK = "observation.images.", "task"
_NO_LOGPROBS = np.zeros(0, np.float32)


class LeRobotSampler:
    """A `Sampler` that answers requests of array states with chunks of a LeRobot policy."""

    def __init__(
        self,
        policy: Any,
        *,
        chunk: int = 1,
        preprocess: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        postprocess: Callable[[Tensor], Tensor] | None = None,
        rename: Mapping[str, str] | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        if not any(hasattr(policy, name) for name in ("predict_action_chunk", "select_action")):
            raise ConfigError(
                f"{type(policy).__name__} has neither predict_action_chunk nor select_action: not LeRobot's"
            )
        self.policy, self.chunk, self.device = policy, chunk, torch.device(device)
        self._preprocess, self._postprocess = preprocess, postprocess
        self._rename = dict(rename or {})

    @classmethod
    def from_pretrained(
        cls, path: str | Path, *, chunk: int = 1, device: str = "cpu", rename: Mapping[str, str] | None = None
    ) -> LeRobotSampler:
        """Open a saved LeRobot policy with the processors saved beside it."""
        try:
            from lerobot.configs.policies import PreTrainedConfig  # type: ignore[import-not-found]
            from lerobot.policies.factory import get_policy_class, make_pre_post_processors  # type: ignore[import-not-found]
        except ImportError as error:
            raise ConfigError(
                f"LeRobot policies need the package lerobot, which cannot be imported here ({error}); "
                "pip install lerobot, in an environment of its own where its torch differs from ours"
            ) from error
        config = PreTrainedConfig.from_pretrained(str(path))
        config.device = device
        policy = get_policy_class(config.type).from_pretrained(str(path), config=config)
        before, after = make_pre_post_processors(config, pretrained_path=str(path))
        return cls(
            policy, chunk=chunk, preprocess=before, postprocess=after, rename=rename, device=device
        )  # fmt: skip

    async def generate(self, requests: Sequence[Request]) -> list[Sampled]:
        """Return one sample per request, in order."""
        return await asyncio.to_thread(self.generate_blocking, requests)

    def generate_blocking(self, requests: Sequence[Request]) -> list[Sampled]:
        """Same as `generate`, for callers without an event loop."""
        batch = self.build_batch([request.state for request in requests])  # type: ignore[misc]
        with torch.inference_mode():
            actions = self._predict_actions(batch if self._preprocess is None else self._preprocess(batch))
            if self._postprocess is not None:
                actions = self._postprocess(actions)
        chunks = actions.float().clamp(-1.0, 1.0).cpu().numpy()
        if chunks.ndim != 3 or len(chunks) != len(requests):
            raise EngineError(f"the policy answered {chunks.shape} to {len(requests)} states, not [B, C, D]")
        return [
            Sampled(
                ArrayAction(chunk, chunk.size),
                _NO_LOGPROBS,
                Sampling(request.params.temperature, 1.0, request.params.seed, FinishReason.GIVEN),
                VersionSpan.at(0),
            )
            for chunk, request in zip(chunks, requests, strict=True)
        ]

    def build_batch(self, states: Sequence[ArrayState]) -> dict[str, Any]:
        """Build a batch with LeRobot's keys from our states."""
        arrays = stack_states(states)
        image_names = {n for n, array in arrays.items() if array.dtype == np.uint8 and array.ndim == 4}
        batch: dict[str, Any] = {TASK: [state.instruction for state in states]}
        numbers: dict[str, list[Any]] = {}
        for name in [name for name in arrays if name not in image_names]:
            key = self._rename.get(name, ENV_STATE if name == "state" else STATE)
            numbers.setdefault(key, []).append(arrays[name].reshape(len(states), -1))
        for key, parts in numbers.items():
            flat = np.concatenate(parts, axis=1).astype(np.float32)
            batch[key] = torch.from_numpy(flat).to(self.device)
        for name in sorted(image_names):
            image = torch.from_numpy(arrays[name].copy()).to(self.device).permute(0, 3, 1, 2)
            batch[self._rename.get(name, IMAGES + name)] = image.float() / 255.0
        return batch

    def _predict_actions(self, batch: dict[str, Any]) -> Tensor:
        self.policy.reset()
        if hasattr(self.policy, "predict_action_chunk"):
            found: Tensor = self.policy.predict_action_chunk(batch)
            return found[:, : self.chunk]
        one: Tensor = self.policy.select_action(batch)
        return one[:, None]
