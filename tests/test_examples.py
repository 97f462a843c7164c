"""The example loop learns, stays readable, and shows only what the package offers to everyone."""

from __future__ import annotations

import ast
import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from stepwell.core import Split
from stepwell.envs import draw_tasks

LOOP = Path(__file__).parent.parent / "examples" / "loop.py"
PUBLIC = {
    "agents",
    "algos",
    "config",
    "core",
    "engines",
    "envs",
    "packing",
    "policies",
    "rendering",
    "training",
}
# One move on two by two cells without holes: small enough to be learnt in seconds.
POND = {"size": 2, "hole_rate": 0.0, "min_actions": 1, "max_turns": 1, "max_actions_per_turn": 1}


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("example_loop", LOOP)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "example_loop", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "NUM_DEMOS", 16)
    monkeypatch.setattr(module, "NUM_EPISODES", 32)
    monkeypatch.setattr(module, "NUM_HELD_OUT", 32)
    return module


def test_the_loop_is_one_readable_file() -> None:
    assert len(LOOP.read_text().splitlines()) < 300


def test_the_loop_uses_public_parts_only() -> None:
    found = set()
    for node in ast.walk(ast.parse(LOOP.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("stepwell"):
            found.add(node.module.split(".")[1])
            is_config = node.module.startswith("stepwell.config.")
            assert is_config or node.module.count(".") == 1, f"{node.module} is not what a folder offers"
        elif isinstance(node, ast.Import):
            assert not any(alias.name.startswith("stepwell") for alias in node.names)
    assert found <= PUBLIC


def test_the_loop_leaves_torchs_own_muon_alone() -> None:
    """It multiplies in bfloat16: without units for that the loop takes fifteen times as long."""
    assert "optim.Muon" not in LOOP.read_text()


@pytest.mark.slow
def test_the_loop_imitates_then_learns_from_its_own_episodes(loop: ModuleType) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        parts = loop.Parts.build(POND, seed=0)
        boards = draw_tasks("frozenlake", POND, Split.TRAIN, 6, seed=0)
        rng = random.Random(0)
        losses = list(loop.warm_start(parts, lambda count: rng.choices(boards, k=count), 25, seed=0))
        few = boards[:3]
        figures = list(loop.learn(parts, lambda count: rng.choices(few, k=count), lambda done: done / 14))
        parts.engine.close()
    finally:
        torch.set_num_threads(threads)
    assert losses[0] > 6.0 > 0.8 > losses[-1]  # ln(1024) = 6.9 is a guess among all tokens
    success = [figure["success"] for figure in figures]
    assert sum(success[-4:]) / 4 > sum(success[:2]) / 2 + 0.15
