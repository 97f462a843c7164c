"""Finds servers with wrong, stale or torn weights, or with a stale cache, before their samples are used.

After every update each server answers two questions, and the trainer's own model answers them too:

    samples   the same prompts every time; the server samples, both give the logprobs of its tokens.
              The limits are those of the parity check. Keys of older weights in the prefix cache show here.
              For a policy that sees every prompt shows an image.
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

from stepwell.core.arrays import FloatArray, IntArray
from stepwell.core.errors import WeightsError
from stepwell.core.logprob_gaps import LogprobGaps
from stepwell.core.protocols import Request, Sampled, SamplingParams
from stepwell.core.step import ImageSpan, TokenAction, TokenState
from stepwell.engines.parity import ParityMonitor
from stepwell.engines.served.images import ServedImages
from stepwell.policies.vlm.vision import embed_with_features, encode_images

IMAGE_SIZE = 64  # of a random image, height and width
PROMPT_LENGTH = 160  # longer than a block of every server's cache
MOST_MISSING = 0.05
"""Share of a move that may be missing, besides rounding."""
ROUNDING_FACTOR = 4.0
LEAST_ROUNDING = {"float64": 1e-9, "float32": 1e-6, "bfloat16": 1e-3, "float16": 1e-3}


class WeightProbe:
    """Prompts and fixed tokens for one run. `model` is the trainer's; it must hold the new weights."""

    def __init__(
        self,
        model: Any,
        num_probes: int,
        num_tokens: int,
        max_length: int,
        banned: Sequence[int] = (),
        *,
        images: ServedImages | None = None,
    ) -> None:
        self._model, self._images = model, images
        self._dtype = str(model.dtype).removeprefix("torch.")
        vocabulary = int(model.config.get_text_config().vocab_size)
        allowed = np.setdiff1d(np.arange(vocabulary), np.asarray(list(banned), dtype=np.int64))
        draw = np.random.default_rng(0)

        def draw_state(size: int) -> TokenState:
            ids = draw.choice(allowed, size=size)
            return TokenState(ids) if images is None else _show_image(ids, images, draw)

        room = max_length - (0 if images is None else _count_image_tokens(images))
        num_tokens = max(1, min(num_tokens, room // 2))
        length = max(1, min(PROMPT_LENGTH, room - num_tokens - 1))
        self._prompts = [draw_state(length) for _ in range(num_probes)]
        self._params = SamplingParams(max_tokens=num_tokens, temperature=1.0, ignore_end=True)
        self.fixed: list[TokenState] = [draw_state(length + num_tokens) for _ in range(num_probes)]
        self._old: FloatArray | None = None
        self._new: FloatArray | None = None
        self._rounding: dict[str, float] = {}  # of each server, from its last check

    def make_requests(self) -> list[Request]:
        """The prompts to sample from: the same for every version."""
        return [Request(state, self._params.with_seed(i)) for i, state in enumerate(self._prompts)]

    def note_new_weights(self) -> None:
        """Score the fixed prompts with the model's new weights; the scores before become the old ones."""
        self._old, self._new = self._new, np.concatenate([self._score(state) for state in self.fixed])

    def check_samples(self, server: str, samples: Sequence[Sampled]) -> LogprobGaps:
        """Raise `WeightsError` if the logprobs of a server's samples are not those of the model."""
        ours, theirs = [], []
        for state, sample in zip(self._prompts, samples, strict=True):
            assert isinstance(sample.action, TokenAction)
            whole = np.concatenate([state.prompt_ids, sample.action.action_ids])
            ours.append(self._score(TokenState(whole, state.images))[len(state.prompt_ids) - 1 :])
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
    def _score(self, state: TokenState) -> FloatArray:
        """The model's logprobs of all tokens but the first."""
        tokens = torch.tensor([state.prompt_ids.tolist()], device=self._model.device)
        logits = self._model(**self._build_inputs(state, tokens)).logits[0, :-1].float()
        chosen = torch.log_softmax(logits, -1).gather(1, tokens[0, 1:, None])[:, 0]
        return chosen.double().cpu().numpy()

    def _build_inputs(self, state: TokenState, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        if self._images is None:
            return {"input_ids": tokens}
        image_format, store = self._images.image_format, self._images.store
        placed = image_format.place_images(state, store)
        pixels = [store.get(place.span.image) for place in placed]
        features = torch.cat(encode_images(self._model, image_format, pixels))
        sites = [place.span.start + np.flatnonzero(place.tokens.is_feature) for place in placed]
        where = torch.from_numpy(np.concatenate(sites)).to(tokens.device)
        inputs = {"inputs_embeds": embed_with_features(self._model, tokens, where, features)}
        if image_format.num_axes > 1:
            positions = image_format.build_positions(tokens.shape[1], placed)
            inputs["position_ids"] = torch.from_numpy(positions)[:, None].to(tokens.device)
        return inputs


def _count_image_tokens(images: ServedImages) -> int:
    return len(images.image_format.build_tokens(IMAGE_SIZE, IMAGE_SIZE).ids)


def _show_image(ids: IntArray, images: ServedImages, draw: np.random.Generator) -> TokenState:
    """The ids with a random image after the first of them."""
    name = images.add(draw.integers(0, 256, size=(IMAGE_SIZE, IMAGE_SIZE, 3), dtype=np.uint8))
    run = images.image_format.build_tokens(IMAGE_SIZE, IMAGE_SIZE).ids
    return TokenState(np.concatenate([ids[:1], run, ids[1:]]), (ImageSpan(name, 1, len(run)),))


def _compute_root_mean_square(values: FloatArray) -> float:
    return float(np.sqrt(np.mean(np.square(values))))
