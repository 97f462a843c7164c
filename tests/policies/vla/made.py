"""Small robot policies, states and steps for tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepwell.config.vla import VLAConfig
from stepwell.core import ArraySpec, ArrayState, Request, SamplingParams, Step
from stepwell.engines.array_engine import ArrayEngine
from stepwell.policies.vla import VLAPolicy, VLAShape
from stepwell.rollout.robot_player import keep_executed

CHUNK, DIM, BINS, STEPS = 3, 2, 16, 4
WORDS = ("open the drawer", "close the drawer", "")


def shape(head: str, *, image: bool = False) -> VLAShape:
    """What a small policy is built for."""
    arrays = {"proprio": ArraySpec((3,)), "state": ArraySpec((4,))}
    if image:
        arrays["front"] = ArraySpec((12, 12, 3), "uint8")
    config = VLAConfig(
        head=head, chunk=CHUNK, bins=BINS, bin_rank=8, denoising_steps=STEPS, width=16, layers=1,
        instruction_width=8, image_channels=4,
    )  # fmt: skip
    return VLAShape(config, arrays, DIM)


def policy(head: str, *, critic: str | None = None, dtype: str = "float32", image: bool = False) -> VLAPolicy:
    """Fresh, but moved away from its all-zero last layers."""
    import torch

    made = VLAPolicy.from_shape(shape(head, image=image), critic=critic, dtype=dtype, seed=3)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.module.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.add_(0.1 * noise)
    return made


def states(count: int, *, seed: int = 0, image: bool = False) -> list[ArrayState]:
    """States of mixed instructions."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(count):
        arrays = {
            "proprio": rng.normal(size=3).astype(np.float32),
            "state": rng.normal(size=4).astype(np.float32),
        }
        if image:
            arrays["front"] = rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)
        made.append(ArrayState(arrays, WORDS[i % 3]))
    return made


def sampled_steps(
    made: VLAPolicy, seen: Sequence[ArrayState], *, cuts: Sequence[int] = (CHUNK,), temperature: float = 1.0
) -> list[Step]:
    """Steps that an engine with the policy's weights samples; `cuts` in turn say how much was executed."""
    engine = ArrayEngine(made.model)
    params = [SamplingParams(temperature=temperature, seed=100 + i) for i in range(len(seen))]
    samples = engine.generate_blocking([Request(s, p) for s, p in zip(seen, params, strict=True)])
    steps = [
        keep_executed(sample, cuts[i % len(cuts)]).step(state)
        for i, (sample, state) in enumerate(zip(samples, seen, strict=True))
    ]
    for i, step in enumerate(steps):
        step.assign_reward({"task": 0.25 * (i % 3)})
    return steps
