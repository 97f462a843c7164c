"""A run folder to look at: settings and one checkpoint, as training leaves them."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell.config.loading import dump_config, load_config
from stepwell.policies import CausalLMPolicy
from stepwell.training.checkpoint import save_checkpoint


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of an untrained model with a critic, which knows nothing yet."""
    folder = tmp_path_factory.mktemp("runs") / "lake"
    policy = CausalLMPolicy.from_pretrained("tiny-0.3m", critic="shared")
    save_checkpoint(folder / "checkpoints", policy, None, {"update": 0}, name="best")
    config = load_config("frozenlake", ["sampling.max_tokens=8", "agent.strategy=grounding_world_modeling"])
    (folder / "config.toml").write_text(dump_config(config))
    return folder
