"""Finds servers with wrong, stale or torn weights, or with a stale cache, before their samples are used.

After every update each server answers two questions, and the trainer's own model answers them too:

    samples   the same prompts every time; the server samples, both give the logprobs of its tokens.
              The limits are those of the parity check. Keys of older weights in the prefix cache show here.
    moves     fixed tokens. From the old weights to the new ones the model's logprobs move by `d`. The
              server's must arrive at the new ones. What is missing is compared with `d` and with the rounding
              that was seen in earlier checks. So a server that kept a part of its old weights is found even
              after an update that hardly changes a logprob.

What differs by less than rounding cannot be found, and does no more harm than rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from stepwell.core.arrays import FloatArray
from stepwell.core.errors import WeightsError
from stepwell.core.logprob_gaps import LogprobGaps
from stepwell.core.protocols import Request, Sampled, SamplingParams
from stepwell.core.step import TokenAction, TokenState
from stepwell.engines.parity import ParityMonitor

PROMPT_LENGTH = 160  # longer than a block of every server's cache
MOST_MISSING = 0.05
"""Share of a move that may be missing, besides rounding."""
ROUNDING_FACTOR = 4.0
LEAST_ROUNDING = {"float64": 1e-9, "float32": 1e-6, "bfloat16": 1e-3, "float16": 1e-3}


class WeightProbe:
    """Prompts and fixed tokens for one run. `model` is the trainer's; it must hold the new weights."""

    def __init__(
        self, model: Any, num_probes: int, num_tokens: int, max_length: int, banned: Sequence[int] = ()
    ) -> None:
        self._model = model
        self._dtype = str(model.dtype).removeprefix("torch.")
        vocabulary = int(model.config.get_text_config().vocab_size)
        allowed = np.setdiff1d(np.arange(vocabulary), np.asarray(list(banned), dtype=np.int64))
        num_tokens = min(num_tokens, max_length // 2)
        length = max(1, min(PROMPT_LENGTH, max_length - num_tokens - 1))
        draw = np.random.default_rng(0)
        self._prompts = [draw.choice(allowed, size=length) for _ in range(num_probes)]
        self._params = SamplingParams(max_tokens=num_tokens, temperature=1.0, ignore_end=True)
        self.fixed: list[list[int]] = [
            draw.choice(allowed, size=length + num_tokens).tolist() for _ in range(num_probes)
        ]
        self._old: FloatArray | None = None
        self._new: FloatArray | None = None
        self._rounding: dict[str, float] = {}  # of each server, from its last check

    def make_requests(self) -> list[Request]:
        """The prompts to sample from: the same for every version."""
        return [Request(TokenState(ids), self._params.with_seed(i)) for i, ids in enumerate(self._prompts)]

    def note_new_weights(self) -> None:
        """Score the fixed prompts with the model's new weights; the scores before become the old ones."""
        self._old, self._new = self._new, np.concatenate([self._score(ids) for ids in self.fixed])

    def check_samples(self, server: str, samples: Sequence[Sampled]) -> LogprobGaps:
        """Raise `WeightsError` if the logprobs of a server's samples are not those of the model."""
        ours, theirs = [], []
        for ids, sample in zip(self._prompts, samples, strict=True):
            assert isinstance(sample.action, TokenAction)
            whole = [*ids.tolist(), *sample.action.action_ids.tolist()]
            ours.append(self._score(whole)[len(ids) - 1 :])
            theirs.append(sample.logprobs)
        gaps = LogprobGaps.compare(
            np.concatenate(theirs), np.concatenate(ours), "token {} of the probe".format
        )
        if (fault := ParityMonitor(self._dtype).judge_gaps(gaps).fault) is not None:
            raise WeightsError(
                f"{server} does not have the trainer's weights after an update: {gaps}; {fault}. Its samples "
                "were not used. Does it serve the same model in the same dtype, and is its cache reset?"
            )
        return gaps

    def check_move(self, server: str, scores: Sequence[Sequence[float]]) -> None:
        """Raise `WeightsError` if a server's logprobs of the fixed tokens did not move with the model's."""
        assert self._new is not None
        missing = np.concatenate([np.asarray(row, np.float64) for row in scores]) - self._new
        rest = _compute_root_mean_square(missing)
        rounding = max(self._rounding.get(server, 0.0), LEAST_ROUNDING.get(self._dtype, 1e-3))
        if self._old is not None and server in self._rounding:
            moved = _compute_root_mean_square(self._new - self._old)
            if not rest <= ROUNDING_FACTOR * rounding + MOST_MISSING * moved:
                raise WeightsError(
                    f"{server} has stale or torn weights: its logprobs of fixed tokens are {rest:.3g} from "
                    f"the new weights' (root mean square), the update moved them by {moved:.3g}, rounding is "
                    f"{rounding:.2g}. Its samples were not used; look at the server's log"
                )
        self._rounding[server] = rest

    @torch.inference_mode()
    def _score(self, ids: Sequence[int]) -> FloatArray:
        """The model's logprobs of all tokens but the first."""
        tokens = torch.tensor([list(ids)], device=self._model.device)
        logits = self._model(input_ids=tokens).logits[0, :-1].float()
        chosen = torch.log_softmax(logits, -1).gather(1, tokens[0, 1:, None])[:, 0]
        return chosen.double().cpu().numpy()


def _compute_root_mean_square(values: FloatArray) -> float:
    return float(np.sqrt(np.mean(np.square(values))))
