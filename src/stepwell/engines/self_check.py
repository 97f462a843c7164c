"""The self-check: compares the engine's logits with the model's own before the first request.

A few tokens go through prefill and decoding, and the logits are compared with those of the
unmodified model. An architecture with an unknown kind of attention or cache is refused with a
clear error instead of being sampled wrongly. For a vision-language model, one image is included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from stepwell.core.errors import ModelError
from stepwell.core.images import ImageStore
from stepwell.core.step import ImageSpan, TokenState
from stepwell.engines.runner import Runner
from stepwell.policies.vlm.vision import prepare_pixels
from stepwell.rendering.vision import ImageFormat

NUM_TOKENS, SIDE = 12, 32  # tokens, and pixels per side of the image
ERROR = {torch.float64: 1e-4, torch.float32: 1e-3}  # of the largest logit; 0.1 in half precision


@dataclass(frozen=True, slots=True, eq=False)
class EngineSelfCheck:
    """The tokens of the self-check, with an image if the model takes images and has room for one."""

    state: TokenState
    image_store: ImageStore
    image_format: ImageFormat | None

    @classmethod
    def for_model(cls, model: Any, max_length: int, image_format: ImageFormat | None) -> EngineSelfCheck:
        words = np.arange(NUM_TOKENS) * 7919 % model.get_input_embeddings().num_embeddings
        image_store, spans = ImageStore(), tuple[ImageSpan, ...]()
        if image_format is not None:
            words = words[words != image_format.marker_id]
            side = np.arange(SIDE, dtype=np.uint8)
            image = np.stack(np.broadcast_arrays(side * 7, side[:, None] * 5, side ^ side[:, None]), axis=-1)
            run = image_format.build_tokens(SIDE, SIDE).ids
            if len(words) + len(run) <= max_length:
                spans = (ImageSpan(image_store.add(image), 2, len(run)),)
                words = np.concatenate([words[:2], run, words[2:]])
        return cls(TokenState(words[:max_length], spans), image_store, image_format)

    def compute_own_logits(self, model: Any) -> torch.Tensor:
        """Compute the unmodified model's logits of the last token.

        With eager attention, the only complete one: the others of transformers ignore the
        softcap of Gemma 2.
        """
        before = model.config._attn_implementation
        model.set_attn_implementation("eager")
        with torch.inference_mode():
            logits: torch.Tensor = model(**self._build_inputs(model), use_cache=False).logits[0, -1]
        model.set_attn_implementation(before)
        return logits

    def _build_inputs(self, model: Any) -> dict[str, torch.Tensor]:
        given = {"input_ids": torch.from_numpy(self.state.prompt_ids.astype(np.int64))[None]}
        if self.image_format is not None and self.state.images:
            if self.image_format.num_axes > 1:
                placed = self.image_format.place_images(self.state, self.image_store)
                own = self.image_format.build_positions(self.state.prompt_ids.size, placed)
                given["position_ids"] = torch.from_numpy(own)[:, None]
            image = self.image_store.get(self.state.images[0].image)
            given |= prepare_pixels(self.image_format, [image]).arguments
            given["pixel_values"] = given["pixel_values"].to(model.dtype)
        return {name: tensor.to(model.device) for name, tensor in given.items()}

    def compare_logits(self, runner: Runner, expected: torch.Tensor) -> None:
        """Prefill in two runs and decode one token, in slot 0; raise `ModelError` if its logits differ."""
        zero, last = np.zeros(1, dtype=np.int64), self.state.prompt_ids.size - 1
        runner.store.ensure_length(last + 1)
        ids = torch.from_numpy(self.state.prompt_ids.astype(np.int64)).to(expected.device)
        with torch.inference_mode(), runner.on_device():
            shift = 0 if runner.image_features is None else runner.image_features.seat_prompt(0, self.state)
            for start, end in ((0, last // 2), (last // 2, last)):
                if end > start:
                    plan, positions, features = runner.prepare_prefill(zero, zero + start, zero + end - start)
                    runner.forward(ids[start:end], positions, plan, want_logits=False, features=features)
            plan = runner.build_decode_plan(zero, zero + last)
            logits = runner.forward(ids[last:], plan.positions + shift, plan, want_logits=True)
        assert logits is not None
        scale = float(expected.abs().max())
        gap = float((logits[0].double() - expected.double()).abs().max())
        if not gap <= ERROR.get(expected.dtype, 0.1) * max(scale, 1e-6):
            raise ModelError(
                f"the engine's logits differ from this model's own (by {gap:.3g} of {scale:.3g}): its "
                "attention or cache works in a way that the engine does not support, or its weights are not "
                'finite; try forward="transformers", or another engine'
            )
