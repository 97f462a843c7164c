"""A tiny model learns from images: what it is shown decides what it says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stepwell.config.training import OptimizerConfig
from stepwell.core import Step
from stepwell.packing import backward, pack
from stepwell.policies import VLMPolicy
from stepwell.rendering import ImagePart, Message, Renderer, load_tokenizer
from stepwell.runs.build.vision import freeze_vision
from stepwell.training.optimizer import Optimizer


@pytest.mark.slow
def test_a_tiny_model_learns_to_name_the_corner_that_is_lit() -> None:
    policy = VLMPolicy.from_pretrained("tiny-vlm-0.5m")
    assert policy.source is not None
    tokenizer = load_tokenizer(policy.source)
    renderer = Renderer(tokenizer, image_format=policy.image_format, image_store=policy.image_store)
    draw = np.random.default_rng(0)
    freeze_vision(policy, "none")

    def shown(count: int) -> list[Step]:
        steps = []
        for _ in range(count):
            image = draw.integers(0, 60, (64, 64, 3), dtype=np.uint8)
            corner = int(draw.integers(4))
            top, left = divmod(corner, 2)
            image[top * 32 : top * 32 + 32, left * 32 : left * 32 + 32] += 150
            state = renderer.start([Message.user([ImagePart(policy.image_store.add(image))])]).state
            words = (" up", " down", " left", " right")
            answer = tokenizer.encode(words[corner])
            steps.append(Step.from_tokens(state.prompt_ids, answer, images=state.images))
        return steps

    assert all(step.num_units == 1 for step in shown(8)), "one word, one token"
    settings = OptimizerConfig(kind="muon", learning_rate=3e-3, muon_learning_rate=0.01)
    optimizer = Optimizer(policy.named_parameters(), settings)
    for _ in range(30):
        optimizer.zero_grad()
        backward(policy, pack(shown(16)), lambda outputs: (-outputs.logprobs.mean(), {}))
        optimizer.step()
    with torch.no_grad():
        chances = torch.cat(policy.logprobs(pack(shown(32)))).exp()
    assert float((chances > 0.5).float().mean()) > 0.9
