"""A trainer on several devices: what one device computes, and an end for every failure."""

from __future__ import annotations

import copy
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from tests.policies.vla.made import policy as robot
from tests.processes import start_module
from tests.runs.small import warmed_model
from tests.training.made import sampled
from tests.training.test_array_training import episodes

from stepwell.algos.recipes import RECIPES
from stepwell.config.training import TrainConfig
from stepwell.core import Status, Step, Task, Trajectory, WeightsError, WorkerError
from stepwell.policies import CausalLMPolicy
from stepwell.training import Trainer, TrajectoryMinibatch, load_checkpoint, save_checkpoint
from stepwell.training.policy import Policy
from stepwell.training.rank_link import RankCollectives
from stepwell.training.rank_share import RankShare, cut_for_ranks

CPU = torch.device("cpu")
ALL = {"logprobs": True, "values": True, "entropies": True}


def language(critic: str | None = None, dtype: str = "float32", **more: object) -> CausalLMPolicy:
    torch.manual_seed(0)
    return CausalLMPolicy.from_pretrained(warmed_model(), critic=critic, dtype=dtype, **more)  # type: ignore[arg-type]


@contextmanager
def trainer(
    policy: Policy, name: str, num_ranks: int, *, timeout_s: float = 60.0, **settings: object
) -> Iterator[Trainer]:
    config = TrainConfig.model_validate({"optimizer": {"learning_rate": 1e-3}, **settings})
    devices = ["cpu"] * num_ranks
    made = Trainer(policy, RECIPES[name], config, horizon=2, devices=devices, rank_timeout_s=timeout_s)
    made.freeze_reference()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def trajectories() -> list[Trajectory]:
    """One is cut, and worth what the critic says of its end."""
    made = copy.deepcopy(sampled()[1])
    cut = next(trajectory for trajectory in made if len(trajectory.steps) == 2)
    cut.final_state, cut.status = cut.steps.pop().state, Status.TRUNCATED
    return made


def is_alive(pid: int) -> bool:
    """Whether a process is there and not a mere entry."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def await_end(pids: list[int], timeout_s: float = 10.0) -> None:
    until = time.monotonic() + timeout_s
    while any(map(is_alive, pids)):
        assert time.monotonic() < until, "a rank was left behind"
        time.sleep(0.05)


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Temporary folders of these tests lie apart from those of tests that run beside them."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # of processes that a test starts


def folders() -> set[str]:
    return {path.name for path in Path(tempfile.gettempdir()).glob("stepwell-ranks-*")}


def assert_same_update(alone: Trainer, together: Trainer, batch: list[Trajectory], tolerance: float) -> None:
    one, other = alone.update(batch, version=0), together.update(batch, version=0)
    for key in one.keys() - {"packed_tokens", "time/critic_s"}:
        assert other[key] == pytest.approx(one[key], rel=max(tolerance, 1e-6), abs=1e-6), key
    pairs = list(zip(alone.optimizer.parameters, together.optimizer.parameters, strict=True))
    assert [a.grad is None for a, _ in pairs] == [b.grad is None for _, b in pairs]
    for a, b in pairs:
        if a.grad is not None:
            torch.testing.assert_close(b.grad, a.grad, rtol=tolerance, atol=tolerance * 1e-2)


# --- the share of one rank: no process needed ------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 20])
@pytest.mark.parametrize("kind", ["language", "token", "flow"])
def test_shares_add_up_to_what_one_device_says(trajectories: list[Trajectory], kind: str, size: int) -> None:
    policy = language("shared") if kind == "language" else robot(kind, critic="own")
    batch = trajectories if kind == "language" else episodes(policy)
    minibatch = TrajectoryMinibatch(batch, CPU, with_bootstrap=True)
    whole = policy.evaluate(minibatch.packed, **ALL)
    cut = cut_for_ranks(minibatch, size)
    shares = [RankShare(policy, cut, rank, size) for rank in range(size)]
    assert sum(bool(share.microbatches) for share in shares) == min(size, len(cut.packed.microbatches))
    assert len(cut.packed.microbatches) == size if size <= 3 else 3 < len(cut.packed.microbatches) <= size
    total = sum(share.compute_outputs(ALL) for share in shares)
    torch.testing.assert_close(total, torch.cat(whole.list_present()).double(), rtol=1e-4, atol=1e-5)


def test_a_batch_is_cut_for_its_ranks_within_the_budget() -> None:
    apart = [Step.from_tokens([i] * 48, [1, 2]) for i in range(12)]
    given = TrajectoryMinibatch(
        [Trajectory(Task("w", {}), [step], Status.FAILURE) for step in apart], CPU, 200
    )
    sizes = [[m.steps.size for m in cut_for_ranks(given, n).packed.microbatches] for n in (1, 2, 3, 5, 12)]
    assert sizes == [[4, 4, 4], [3, 3, 3, 3], [4, 4, 4], [3, 3, 3, 3], [1] * 12]
    assert cut_for_ranks(given, 3) is given
    stacked = TrajectoryMinibatch(episodes(robot("token")), CPU, micro_batch=3)  # 8 steps: 3, 3, 2
    assert [m.num_states for m in cut_for_ranks(stacked, 2).packed.microbatches] == [2, 2, 2, 2]


def test_an_only_microbatch_is_pulled_without_being_run_again(trajectories: list[Trajectory]) -> None:
    policy = language("shared")
    share = RankShare(policy, TrajectoryMinibatch(trajectories, CPU), 0, 1)
    gradients = []
    for keep in (True, False):
        pulls = torch.linspace(-1, 1, sum(share.output_lengths(ALL)), dtype=torch.float64)
        share.compute_outputs(ALL, keep=keep)
        weights = [parameter for parameter in policy.parameters() if parameter.requires_grad]
        for weight in weights:
            weight.grad = None
        share.pull_back(pulls, ALL)
        gradients.append([weight.grad for weight in weights])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


# --- several processes -----------------------------------------------------------------------


@pytest.mark.slow
def test_three_ranks_learn_what_one_device_learns_in_float64(trajectories: list[Trajectory]) -> None:
    policies = [language(dtype="float64") for _ in range(2)]
    with trainer(policies[0], "grpo", 1) as alone, trainer(policies[1], "grpo", 3) as together:
        for _ in range(3):
            assert_same_update(alone, together, trajectories, 1e-8)
        for a, b in zip(alone.optimizer.parameters, together.optimizer.parameters, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-7, atol=1e-8)
        lone = [trajectories[0]]  # fewer steps than ranks
        assert_same_update(alone, together, lone, 1e-8)


@pytest.mark.slow
def test_two_ranks_learn_with_critic_and_passes_one_goes_on_and_other_weights_are_refused(
    trajectories: list[Trajectory], tmp_path: Path
) -> None:
    settings = {"update_epochs": 2, "minibatches": 2, "optimizer": {"kind": "muon"}}
    with (
        trainer(language("shared"), "steppo", 1, **settings) as alone,
        trainer(language("shared"), "steppo", 2, **settings) as together,
    ):
        for _ in range(3):
            assert_same_update(alone, together, trajectories, 0.02)
        saved = save_checkpoint(tmp_path, together.policy, together, {"update": 3, "state": {}})
        with trainer(language("shared"), "steppo", 1, **settings) as later:
            load_checkpoint(saved, later.policy, later)
            assert later.num_done == 3
            later.policy.reference.load_state_dict(together.policy.reference.state_dict())
            assert_same_update(later, together, trajectories, 1e-3)
        with torch.no_grad():
            together.optimizer.parameters[0].add_(1e-3)  # behind the back of the other rank
        with pytest.raises(WeightsError, match="no longer learn together"):
            together.update(trajectories)
        assert together.rank_pids == []


@pytest.mark.slow
@pytest.mark.parametrize("head", ["token", "flow"])
def test_two_ranks_train_a_robot_policy_as_one_does_and_a_killed_one_is_told(head: str) -> None:
    made = robot(head, critic="own")
    batch = episodes(made)
    before = folders()
    with (
        trainer(copy.deepcopy(made), "steppo", 1) as alone,
        trainer(copy.deepcopy(made), "steppo", 2, timeout_s=4) as together,
    ):
        for _ in range(3):
            assert_same_update(alone, together, batch, 1e-3)
        pids = together.rank_pids
        assert len(pids) == 1 and is_alive(pids[0])
        weights = copy.deepcopy(together.policy.state_dict())
        started = time.monotonic()
        if head == "token":
            os.kill(pids[0], signal.SIGKILL)
            said = rf"rank 1 of the trainer \(cpu, pid {pids[0]}\) was killed by SIGKILL"
        else:
            os.kill(pids[0], signal.SIGSTOP)
            said = r"did not answer within 4 s"
        with pytest.raises(WorkerError, match=rf"(?s){said}.*--resume"):
            together.update(batch)
        assert time.monotonic() - started < 60
        await_end(pids)
        assert folders() == before
        now = together.policy.state_dict()
        assert all(torch.equal(now[key], weights[key]) for key in weights)


@pytest.mark.slow
def test_ranks_end_with_their_parent() -> None:
    parent = start_module("tests.training.rank_parent")
    assert parent.stdout is not None
    pid, folder = parent.stdout.readline().decode().split()
    assert is_alive(int(pid)) and folder in folders()
    parent.send_signal(signal.SIGKILL)
    parent.kill()
    await_end([int(pid)])
    assert folder not in folders()


# --- on a GPU --------------------------------------------------------------------------------


@pytest.mark.gpu
def test_a_gpu_and_the_cores_learn_together() -> None:
    made = robot("token", critic="own")
    batch = episodes(made)
    placed = copy.deepcopy(made)
    placed.module.to("cuda:0")
    config = TrainConfig.model_validate({"optimizer": {"learning_rate": 1e-3}})
    together = Trainer(placed, RECIPES["grpo"], config, devices=["cuda:0", "cpu"], rank_timeout_s=60)
    try:
        with trainer(made, "grpo", 1) as alone:
            together.freeze_reference()
            for _ in range(2):
                one, other = alone.update(batch), together.update(batch)
                assert other["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-2)
    finally:
        together.close()


@pytest.mark.gpu
def test_a_wire_between_devices_carries_tensors(tmp_path: Path) -> None:
    """With one GPU there is one rank; every collective runs all the same."""
    wire = RankCollectives(tmp_path, 0, 1, on_devices=True, timeout_s=30)
    tensors = [torch.arange(3.0, device="cuda"), torch.ones(2, dtype=torch.float64, device="cuda")]
    wire.broadcast(tensors)
    wire.sum_to_first(tensors)
    assert tensors[0].tolist() == [0.0, 1.0, 2.0] and tensors[1].tolist() == [1.0, 1.0]
    assert wire.any([True, False], torch.device("cuda")) == [True, False]
