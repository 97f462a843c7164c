"""Policies that see, their training and their engine on a GPU.

On a machine without one it is pretended (`pretend_cuda`): devices and values are checked, kernels are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.policies.vlm.made import Scene
from tests.policies.vlm.pretend_cuda import MixedDevicesError, pretended
from torch.utils._pytree import tree_map

from stepwell.config.engine import EngineConfig
from stepwell.config.training import OptimizerConfig
from stepwell.core import Request, SamplingParams, Step
from stepwell.engines import EmbeddedEngine, check_parity
from stepwell.engines.weights import fingerprint_of
from stepwell.packing import backward, pack
from stepwell.policies.vlm import vision
from stepwell.training.optimizer import Optimizer

DirectoryOf = Callable[[str], Path]
WHERE = ("cpu", "cuda:0")
FAMILIES = ("tiny", "qwen2_5_vl", "idefics3")  # the others share their code


@pytest.fixture(params=["pretended", pytest.param("real", marks=pytest.mark.gpu)])
def machine(request: pytest.FixtureRequest) -> Iterator[str]:
    """A machine with a GPU."""
    is_real = request.param == "real"
    if torch.cuda.is_available() and not is_real:
        pytest.skip("here the GPU itself is asked")
    with nullcontext() if is_real else pretended():
        yield request.param


def updated(scene: Scene, steps: list[Step], num_updates: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Logprobs of the steps before any update, and the weights after some updates by them."""
    optimizer = Optimizer(scene.policy.named_parameters(), OptimizerConfig(kind="muon", learning_rate=1e-3))
    logprobs = []
    for _ in range(num_updates):
        optimizer.zero_grad()
        _, _, outputs = backward(scene.policy, pack(steps), lambda out: (-out.logprobs.mean(), {}))
        logprobs.append(outputs.logprobs.cpu().numpy())
        optimizer.step()
    weights = {name: p.detach().cpu().numpy() for name, p in scene.policy.named_parameters()}
    return logprobs[0], weights


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_updates_on_a_gpu_are_those_on_the_cpu(machine: str, directory_of: DirectoryOf, family: str) -> None:
    num_updates = 2 if family == "tiny" else 1  # what an optimizer keeps is the same for all families
    found = []
    for device in WHERE:
        scene = Scene(directory_of(family), device=device)
        assert next(scene.policy.parameters()).is_cuda == (device != "cpu")
        found.append(updated(scene, scene.steps(), num_updates))
    (logprobs, weights), (other_logprobs, other_weights) = found
    rounding, of_muon = (1e-9, 1e-5) if machine == "pretended" else (1e-5, 5e-3)  # Muon rounds to bfloat16
    np.testing.assert_allclose(other_logprobs, logprobs, atol=rounding)
    for name, value in weights.items():
        np.testing.assert_allclose(other_weights[name], value, atol=of_muon, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_engine_on_a_gpu_samples_what_the_policy_there_scores(
    machine: str, directory_of: DirectoryOf, family: str, dtype: str
) -> None:
    if machine == "pretended" and dtype == "bfloat16":
        pytest.skip("a CPU would emulate bfloat16")
    scene = Scene(directory_of(family), device="cuda:0", dtype=dtype)
    policy = scene.policy
    states = [step.state for step in scene.steps()]
    config = EngineConfig(max_batch_size=4, num_slots=8, seed=3)
    with EmbeddedEngine(
        policy.model,
        scene.tokenizer,
        config,
        image_format=policy.image_format,
        image_store=scene.image_store,
    ) as engine:
        with torch.no_grad():
            next(policy.parameters()).mul_(1.01)
        weights = policy.model_weights()
        engine.load_weights(1, weights, fingerprint=fingerprint_of(weights))
        asked = [Request(state, SamplingParams(max_tokens=4, ignore_end=True)) for state in states]
        sampled = engine.generate_blocking(asked)
    steps = [one.step(state) for one, state in zip(sampled, states, strict=True)]
    report = check_parity(policy, steps, dtype=dtype)
    assert report.num_tokens == 4 * len(states)
    assert report.max_abs <= {"float32": 1e-3, "bfloat16": 0.15}[dtype]  # the model is small


def test_an_optimizer_that_goes_on_keeps_its_state_on_the_gpu(
    machine: str, directory_of: DirectoryOf
) -> None:
    policy = Scene(directory_of("tiny"), device="cuda:0").policy
    settings = OptimizerConfig(kind="muon", learning_rate=1e-3)
    optimizer, resumed = (Optimizer(policy.named_parameters(), settings) for _ in range(2))
    for parameter in policy.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    saved = tree_map(lambda value: value.cpu() if torch.is_tensor(value) else value, optimizer.state_dict())
    resumed.load_state_dict(saved)
    found = [
        (name, value.is_cuda)
        for part in resumed.state_dict()
        for state in part["state"].values()
        for name, value in state.items()
    ]
    assert {name for name, _ in found} == {"exp_avg", "exp_avg_sq", "momentum_buffer", "step"}
    assert all(is_there for _, is_there in found)  # the fused step reads its count there too


def test_convolutions_of_float32_are_not_rounded_on_a_gpu(
    machine: str, directory_of: DirectoryOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    scene = Scene(directory_of("tiny"), device="cuda:0", dtype="float32")
    pixels = vision.prepare_pixels(scene.policy.image_format, scene.images * 24).to(scene.policy.device)
    some = vision.prepare_pixels(scene.policy.image_format, scene.images).to(scene.policy.device)
    with torch.no_grad():
        many, few = (vision.compute_features(scene.policy.model, shown) for shown in (pixels, some))
    assert not torch.backends.cudnn.allow_tf32
    for ours, other in zip(few, many, strict=False):
        assert float((ours - other).abs().max()) < 1e-4 * float(other.abs().max())


@pytest.mark.skipif(torch.cuda.is_available(), reason="here the GPU itself is asked")
def test_what_stays_on_the_cpu_is_found(directory_of: DirectoryOf, monkeypatch: pytest.MonkeyPatch) -> None:
    def left(pixels: Any, device: torch.device) -> Any:
        return pixels

    with pretended():
        scene = Scene(directory_of("llava"), device="cuda:0")
        monkeypatch.setattr(vision.Pixels, "to", left)
        with pytest.raises(MixedDevicesError):
            scene.policy.logprobs(pack(scene.steps()))
        with pytest.raises(TypeError, match="numpy"):
            next(scene.policy.parameters()).detach().numpy()
