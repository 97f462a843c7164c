"""`stepwell sft`: a model trained on chats, written as a directory that a run starts from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stepwell.config.policy import PolicyConfig
from stepwell.config.training import OptimizerConfig, WarmStartConfig
from stepwell.core import ConfigError
from stepwell.policies import CausalLMPolicy, accepts_images, resolve_model
from stepwell.policies.numerics import set_numerics
from stepwell.rendering import Renderer, load_tokenizer
from stepwell.runs.sft.chats import read_chats
from stepwell.training import count_batches, imitate

Tell = Callable[[int, int, dict[str, float]], None]


def train_on_chats(
    model: str,
    source: str,
    to: Path,
    tell: Tell,
    *,
    epochs: int = 3,
    batch_size: int = 8,
    learning_rate: float = 2e-5,
    max_updates: int | None = None,
    seed: int = 0,
    dtype: str = "float32",
    device: str = "cpu",
    token_budget: int | None = 8192,
) -> float:
    """Train `model` on the assistant's turns of `source` and write it to `to`; returns the last loss."""
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ConfigError(f"--to: {to} exists and is not empty; choose another directory")
    path = resolve_model(model, seed=seed)
    if accepts_images(path):
        raise ConfigError(f"{model} is a vision-language model; chats here are text only")
    set_numerics()
    renderer = Renderer(load_tokenizer(path))
    chats = read_chats(source, renderer, "sft")
    policy = CausalLMPolicy.from_config(
        PolicyConfig.model_validate({"model": str(path), "dtype": dtype, "device": device})
    )
    settings = WarmStartConfig(
        num_demos=len(chats),
        epochs=epochs,
        batch_size=batch_size,
        max_updates=max_updates,
        optimizer=OptimizerConfig(learning_rate=learning_rate),
    )
    total, loss = count_batches(settings, len(chats)), float("nan")
    for number, values in enumerate(imitate(policy, chats, settings, seed, token_budget=token_budget), 1):
        loss = values["loss/policy"]
        tell(number, total, values)
    policy.save_pretrained(to)
    return loss
