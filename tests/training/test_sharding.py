"""Training in shards (FSDP2): what one device computes, for any policy, batch and number of ranks."""

from __future__ import annotations

import copy
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.policies.vla.made import policy as robot
from tests.policies.vlm.made import Scene, make_directory
from tests.properties import examples
from tests.training.test_array_training import episodes
from tests.training.test_ranks import (
    assert_same_update,
    assert_same_weights,
    language,
    own_folder,
    trainer,
    trajectories,
)

from stepwell.core import Status, Task, Trajectory
from stepwell.core.child_process import ChildProcess, limit_threads
from stepwell.core.fork_server import MODEL_MODULES
from stepwell.policies import causal_lm
from stepwell.training import Trainer, load_checkpoint, rank_launch, save_checkpoint
from stepwell.training.rank_link import describe_tensor, read_tensors, view_bytes

__all__ = ["own_folder", "trajectories"]  # fixtures


def test_tensors_travel_as_their_bits() -> None:
    given_ = {
        "a": torch.arange(6.0).view(2, 3).T,
        "none": torch.zeros(0, 4),
        "half": torch.tensor([1.0, 2.5, -3.0], dtype=torch.bfloat16),
        "one": torch.tensor(7, dtype=torch.int64),
    }
    payload = bytearray(b"".join(view_bytes(tensor) for tensor in given_.values()))
    found = dict(read_tensors([describe_tensor(*item) for item in given_.items()], payload))
    assert found.keys() == given_.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in given_.items())
    assert all(found[name].dtype == tensor.dtype for name, tensor in given_.items())


Pair = tuple[Trainer, Trainer]


@pytest.fixture(scope="module")
def odd_pair() -> Iterator[Pair]:
    """One device, and three ranks with a critic of its own in shards."""
    made, slow = robot("token", critic="own"), {"learning_rate": 1e-8}  # nothing drifts apart by rounding
    with (
        trainer(copy.deepcopy(made), "steppo", 1, optimizer=slow) as alone,
        trainer(copy.deepcopy(made), "steppo", 3, optimizer=slow, sharding="full") as together,
    ):
        yield alone, together


@pytest.mark.slow
@settings(max_examples=examples(24, 6), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    count=st.integers(1, 7),
    micro_batch=st.one_of(st.none(), st.integers(1, 5)),
    cuts=st.sets(st.integers(0, 6)),
)
def test_any_batch_in_shards_has_the_gradient_of_one_device(
    odd_pair: Pair, count: int, micro_batch: int | None, cuts: set[int]
) -> None:
    """Odd numbers of steps, ranks without work, microbatches of bootstraps alone."""
    alone, together = odd_pair
    batch = episodes(alone.policy, count)  # type: ignore[arg-type]
    for number, trajectory in enumerate(batch):
        if number in cuts:
            trajectory.final_state, trajectory.status = trajectory.steps.pop().state, Status.TRUNCATED
    changes = {"micro_batch": micro_batch}
    for one in odd_pair:
        one.config = one.config.model_copy(update=changes)
    assert_same_update(alone, together, batch, 1e-3)


@pytest.mark.slow
def test_saved_on_four_ranks_a_run_goes_on_with_two_one_and_no_rank(
    trajectories: list[Trajectory], tmp_path: Path
) -> None:
    chosen = {"minibatches": 2, "schedule": "linear", "num_updates": 4}
    losses: dict[object, float] = {}

    def restart(num_ranks: int, **more: object) -> None:
        with trainer(language(), "rloo", num_ranks, **chosen, **more) as later:
            load_checkpoint(saved, later.policy, later)
            assert later.num_done == 2
            found = [later.update(trajectories)["loss"] for _ in range(2)]
            losses[num_ranks, *more.values()] = found[-1]
            weights[num_ranks, *more.values()] = later.policy.state_dict()

    weights: dict[object, dict[str, torch.Tensor]] = {}
    with trainer(language(), "rloo", 4, sharding="full", **chosen) as four:
        for _ in range(2):
            four.update(trajectories)
        saved = save_checkpoint(tmp_path, four.policy, four, {"update": 2, "state": {}})
        assert {path.name for path in (saved.path / "shards").glob("*.distcp")} == {
            f"__{rank}_0.distcp" for rank in range(4)
        }
        expected = [four.update(trajectories)["loss"] for _ in range(2)][-1]
        after = copy.deepcopy(four.policy.state_dict())
    for num_ranks, more in ((2, {"sharding": "full"}), (1, {"sharding": "full"}), (1, {})):
        restart(num_ranks, **more)
    assert all(loss == pytest.approx(expected, rel=1e-4, abs=1e-6) for loss in losses.values()), losses
    for found in weights.values():
        for name, weight in after.items():
            torch.testing.assert_close(found[name], weight, rtol=1e-3, atol=1e-4)


def start_half_rank(link: socket.socket, num_threads: int) -> ChildProcess:
    """Start the process of a rank that accepts 16 bits on the cores (`half_rank.py`)."""
    return ChildProcess(
        [sys.executable, "-m", "tests.training.half_rank", str(link.fileno())],
        environment=os.environ | limit_threads(num_threads),
        pass_fds=(link.fileno(),),
        imports=MODEL_MODULES,
    )


@pytest.fixture
def slow_bfloat16(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lift the refusal of 16 bits on the cores, here and in ranks: it is there for their speed."""
    monkeypatch.setattr(causal_lm, "check_dtype", lambda dtype, device: None)
    monkeypatch.setattr(rank_launch, "start_process", start_half_rank)
    with torch.backends.mkldnn.flags(enabled=False):
        yield


def read_gradient(one: Trainer) -> torch.Tensor:
    """The gradient of the last update, in one row."""
    named = {name: weight.grad for name, weight in one.policy.named_parameters() if weight.grad is not None}
    found = named if one.ranks is None else one.ranks.collect_gradients()
    return torch.cat([found[name].flatten().double() for name in sorted(found)])


def read_originals(one: Trainer) -> dict[str, torch.Tensor]:
    """The float32 weights that are trained."""
    if one.ranks is not None:
        one.ranks.start()
        one.ranks.collect_state()
    state = one.optimizer.read_named_state()
    return {name: tensor.clone() for name, tensor in state.items() if name.endswith(":original")}


@pytest.mark.slow
@pytest.mark.usefixtures("slow_bfloat16")
def test_shards_in_bfloat16_differ_from_one_device_by_less_than_it_rounds_and_are_resumed_to_the_bit(
    trajectories: list[Trajectory], tmp_path: Path
) -> None:
    gradients: dict[object, torch.Tensor] = {}
    for dtype, num_ranks in (("float64", 1), ("bfloat16", 1), ("bfloat16", 2), ("bfloat16", 4)):
        more = {"sharding": "full"} if num_ranks > 1 else {}
        with trainer(language(dtype=dtype), "grpo", num_ranks, **more) as one:  # type: ignore[arg-type]
            one.update(trajectories)
            gradients[dtype, num_ranks] = read_gradient(one)
            if num_ranks == 4:
                saved = save_checkpoint(tmp_path, one.policy, one, {"update": 1, "state": {}})
                originals, weights = read_originals(one), copy.deepcopy(one.policy.state_dict())
    exact, alone = gradients["float64", 1], gradients["bfloat16", 1]
    rounding = (alone - exact).norm()
    assert 1e-3 < rounding / exact.norm() < 0.05  # x86_64: 0.0106
    for num_ranks in (2, 4):
        assert (gradients["bfloat16", num_ranks] - alone).norm() < rounding  # x86_64: 0.3 of it
    assert originals and all(tensor.dtype == torch.float32 for tensor in originals.values())
    for num_ranks, more in ((2, {"sharding": "full"}), (1, {"sharding": "full"}), (1, {})):
        with trainer(language(dtype="bfloat16"), "grpo", num_ranks, **more) as later:  # type: ignore[arg-type]
            load_checkpoint(saved, later.policy, later)
            assert all(torch.equal(later.policy.state_dict()[name], weights[name]) for name in weights)
            found = read_originals(later)
            assert found.keys() == originals.keys()
            assert all(torch.equal(found[name], originals[name]) for name in originals)


@pytest.mark.slow
@pytest.mark.usefixtures("slow_bfloat16")
def test_one_rank_learns_what_one_device_learns_in_bfloat16_update_by_update(
    trajectories: list[Trajectory],
) -> None:
    """It gathers its weights once per update, so each update must run with those of the one before."""
    fast = {"learning_rate": 1e-3}
    with (
        trainer(language(dtype="bfloat16"), "grpo", 1, optimizer=fast) as alone,
        trainer(language(dtype="bfloat16"), "grpo", 1, optimizer=fast, sharding="full") as together,
    ):
        for _ in range(3):
            alone.update(trajectories), together.update(trajectories)
            one, other = read_gradient(alone), read_gradient(together)
            assert (one - other).norm() < 1e-2 * one.norm()
        for name, weight in alone.policy.state_dict().items():
            torch.testing.assert_close(together.policy.state_dict()[name], weight, rtol=2e-2, atol=1e-3)


@pytest.mark.slow
def test_adapters_alone_are_trained_and_collected(trajectories: list[Trajectory]) -> None:
    pytest.importorskip("peft")
    chosen = {"lora": {"r": 4}, "gradient_checkpointing": "full"}
    with (
        trainer(language(**chosen), "grpo", 1) as alone,
        trainer(language(**chosen), "grpo", 2, sharding="full") as together,
    ):
        for policy in (alone.policy, together.policy):
            torch.manual_seed(1)
            for name, parameter in policy.named_parameters():
                if "lora_B" in name:
                    torch.nn.init.normal_(parameter, std=0.02)
        assert_same_update(alone, together, trajectories, 1e-3)
        assert together.ranks is not None
        found = together.ranks.start().call("weights")[0].tensors
        assert found and all("lora_" in name for name in found)
        for name, parameter in together.policy.named_parameters():  # collected through shared memory
            assert torch.equal(found[name], parameter)
        assert_same_weights(alone, together, 1e-4)


@pytest.mark.slow
def test_a_vision_language_policy_learns_in_shards_with_and_without_images(tmp_path: Path) -> None:
    path = make_directory("qwen2_5_vl", tmp_path / "model")
    scenes = [Scene(path, critic="own") for _ in range(2)]
    batches = []
    for scene in scenes:
        scene.policy = type(scene.policy).from_pretrained(
            path, image_store=scene.image_store, dtype="float32", critic="own"
        )
        steps = scene.steps()
        with torch.no_grad():
            for step, found in zip(steps, scene.policy.score(steps), strict=True):
                step.behavior_logprobs = found
        for number, step in enumerate(steps):
            step.assign_reward({"task": 0.3 * (number % 3)})
        batches.append([Trajectory(Task("w", {}), [step], Status.FAILURE, group="g") for step in steps])
    with (
        trainer(scenes[0].policy, "steppo", 1) as alone,
        trainer(scenes[1].policy, "steppo", 3, sharding="full") as together,
    ):
        assert_same_update(alone, together, batches[0], 2e-2)
        assert_same_update(alone, together, batches[0][-1:], 2e-2)  # text only: no gradient for images
