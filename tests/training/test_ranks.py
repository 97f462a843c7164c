"""A trainer on several devices: what one device computes, and an end for every failure."""

from __future__ import annotations

import copy
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.policies.vla.made import policy as robot
from tests.processes import start_module
from tests.runs.small import warmed_model
from tests.training.made import sampled
from tests.training.test_array_training import episodes
from tests.variants import keep_quick

from stepwell.algos.recipes import RECIPES
from stepwell.config.training import TrainConfig
from stepwell.config.workers import OnDeadRank
from stepwell.core import ParityError, Status, Step, Task, Trajectory, WeightsError, WorkerError
from stepwell.core.child_process import ChildProcess, limit_threads
from stepwell.core.fork_server import MODEL_MODULES
from stepwell.policies import CausalLMPolicy
from stepwell.training import Trainer, TrajectoryMinibatch, rank_launch, rank_memory
from stepwell.training.policy import Policy
from stepwell.training.rank_share import RankShare, cut_for_ranks, deal_rounds
from stepwell.training.ranks import Ranks

CPU = torch.device("cpu")


def language(critic: str | None = None, dtype: str = "float32", **more: object) -> CausalLMPolicy:
    torch.manual_seed(0)
    return CausalLMPolicy.from_pretrained(warmed_model(), critic=critic, dtype=dtype, **more)  # type: ignore[arg-type]


@contextmanager
def trainer(
    policy: Policy,
    name: str,
    num_ranks: int,
    *,
    timeout_s: float = 60.0,
    then: OnDeadRank = "stop",
    **settings: object,
) -> Iterator[Trainer]:
    config = TrainConfig.model_validate({"optimizer": {"learning_rate": 1e-3}, **settings})
    made = Trainer(
        policy,
        RECIPES[name],
        config,
        horizon=2,
        devices=["cpu"] * num_ranks,
        on_dead_rank=then,
        rank_timeout_s=timeout_s,
    )
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
    places = (Path(tempfile.gettempdir()), rank_memory.PLACE)
    return {path.name for place in places for path in place.glob("stepwell-ranks-*")}


def assert_same_update(alone: Trainer, together: Trainer, batch: list[Trajectory], tolerance: float) -> None:
    one, other = alone.update(batch, version=0), together.update(batch, version=0)
    for key in one.keys() - {"packed_tokens", "time/critic_s"}:
        assert other[key] == pytest.approx(one[key], rel=max(tolerance, 1e-6), abs=1e-6), key
    assert together.ranks is not None
    found = together.ranks.collect_gradients()
    named = dict(alone.policy.named_parameters())
    assert found.keys() == {name for name, parameter in named.items() if parameter.grad is not None}
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, named[name].grad, rtol=tolerance, atol=tolerance * 1e-2)


def assert_same_weights(alone: Trainer, together: Trainer, tolerance: float) -> None:
    for a, b in zip(alone.optimizer.parameters, together.optimizer.parameters, strict=True):
        torch.testing.assert_close(b, a, rtol=tolerance, atol=tolerance)


# --- the share of one rank: no process needed ------------------------------------------------


@dataclass
class Piece:
    num_tokens: int


@given(st.lists(st.integers(1, 99), min_size=1, max_size=30), st.integers(1, 9))
def test_rounds_hold_every_microbatch_once_and_ranks_have_about_equal_work(
    tokens: list[int], size: int
) -> None:
    pieces = [Piece(count) for count in tokens]
    rounds = deal_rounds(pieces, size)
    assert sorted(number for members in rounds for number in members) == list(range(len(tokens)))
    assert all(len(members) == size for members in rounds[:-1])
    slowest = sum(max(tokens[number] for number in members) for members in rounds)
    assert slowest <= sum(tokens) / size + max(tokens)  # whoever deals: one piece more than an equal share
    shares = [RankShare(list(pieces), rank, size) for rank in range(size)]
    for number in range(len(rounds)):
        found = [share.find_microbatch(number) for share in shares]
        assert [piece for piece, is_own in found if is_own] == [pieces[i] for i in rounds[number]]
        assert all(piece.num_tokens == min(tokens) for piece, is_own in found if not is_own)


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


# --- several processes -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("sharding", "num_ranks"), [("none", 3), ("full", 2), ("full", 4)])
def test_ranks_learn_what_one_device_learns_in_float64(
    trajectories: list[Trajectory], sharding: str, num_ranks: int
) -> None:
    policies = [language(dtype="float64") for _ in range(2)]
    with (
        trainer(policies[0], "grpo", 1) as alone,
        trainer(policies[1], "grpo", num_ranks, sharding=sharding) as together,
    ):
        for batch in (trajectories, trajectories[:2]):  # one with fewer steps than ranks
            assert_same_update(alone, together, batch, 1e-8)
        assert_same_weights(alone, together, 1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["none", "full"])
def test_two_ranks_learn_with_critic_and_muon_and_other_weights_are_refused(
    trajectories: list[Trajectory], sharding: str
) -> None:
    settings = {"update_epochs": 2, "minibatches": 2, "optimizer": {"kind": "muon"}}
    with (
        trainer(language("shared"), "steppo", 1, **settings) as alone,
        trainer(language("shared"), "steppo", 2, sharding=sharding, **settings) as together,
    ):
        for _ in range(2):
            assert_same_update(alone, together, trajectories, 0.02)
        with torch.no_grad():
            together.optimizer.parameters[0].add_(1e-3)  # behind the back of the ranks
        with pytest.raises(WeightsError, match="no longer learn together"):
            together.update(trajectories)
        assert together.rank_pids == []


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["none", "full"])
def test_ranks_leave_the_policy_as_it_is_while_the_critic_learns_alone(
    trajectories: list[Trajectory], sharding: str
) -> None:
    optimizer = {"kind": "adamw", "weight_decay": 0.1}
    settings = {"critic_only_updates": 1, "optimizer": optimizer, "sharding": sharding}
    with trainer(language("own"), "steppo", 2, **settings) as one:
        before = {name: tensor.clone() for name, tensor in one.policy.state_dict().items()}
        one.update(trajectories)
        moved = {
            name for name, tensor in one.policy.state_dict().items() if not torch.equal(tensor, before[name])
        }
    assert moved and all(name.startswith("critic") for name in moved)


def start_faulty_rank(fault: str, link: socket.socket, num_threads: int) -> ChildProcess:
    """Start the process of a rank with a fault (`faulty_rank.py`)."""
    return ChildProcess(
        [sys.executable, "-m", "tests.training.faulty_rank", str(link.fileno()), fault],
        environment=os.environ | limit_threads(num_threads),
        pass_fds=(link.fileno(),),
        imports=MODEL_MODULES,
    )


FAULTY_RANKS = {
    ("positions", "none"): "rank 1 .* reads tokens at other positions than the trainer",
    ("frequencies", "full"): "rank 1 .* has other rotary frequencies rotary_emb.inv_freq than the trainer",
    ("stale", "none"): "rank 1 .* they no longer learn together",
    ("changed", "full"): "rank 1 .* has changed its weights outside of an update",
}


@pytest.mark.parametrize(
    ("fault", "sharding"), keep_quick(tuple(FAULTY_RANKS), lambda case: case[0] == "positions")
)
def test_a_rank_that_reads_or_learns_otherwise_is_told_before_the_weights_change(
    fault: str, sharding: str, trajectories: list[Trajectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy, started = rank_launch.start_process, []

    def start_process(link: socket.socket, num_threads: int) -> ChildProcess:
        started.append(link)
        start = healthy if len(started) == 1 else partial(start_faulty_rank, fault)
        return start(link, num_threads)

    monkeypatch.setattr(rank_launch, "start_process", start_process)
    with trainer(language(), "grpo", 2, sharding=sharding) as together:
        if fault == "changed":
            together.update(trajectories)
            assert together.ranks is not None
            together.ranks.measure_memory()  # which does it
        before = copy.deepcopy(together.policy.state_dict())
        with pytest.raises((ParityError, WeightsError), match=FAULTY_RANKS[fault, sharding]):
            together.update(trajectories)
        after = together.policy.state_dict()
        assert all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["token", "flow"])
def test_a_killed_and_a_silent_rank_are_told_and_the_weights_stay(head: str) -> None:
    made = robot(head, critic="own")
    batch = episodes(made)
    before = folders()
    with trainer(copy.deepcopy(made), "steppo", 2, timeout_s=4) as together:
        together.update(batch)
        pids = together.rank_pids
        assert len(pids) == 2 and all(map(is_alive, pids))
        weights = copy.deepcopy(together.policy.state_dict())
        started = time.monotonic()
        if head == "token":
            os.kill(pids[1], signal.SIGKILL)
            said = rf"rank 1 of the trainer \(cpu, pid {pids[1]}\) was killed by SIGKILL"
        else:
            os.kill(pids[1], signal.SIGSTOP)
            said = rf"rank 1 of the trainer \(cpu, pid {pids[1]}\) did not answer within 4 s"
        with pytest.raises(WorkerError, match=rf"(?s){said}.*--resume"):
            together.update(batch)
        assert time.monotonic() - started < 60
        await_end(pids)
        assert folders() == before
        now = together.policy.state_dict()
        assert all(torch.equal(now[key], weights[key]) for key in weights)


@pytest.mark.slow
@pytest.mark.parametrize("then", ["shrink", "wait"])
def test_a_run_goes_on_from_its_last_update_after_a_rank_was_killed(then: OnDeadRank) -> None:
    made = robot("token", dtype="float64")
    batch = episodes(made)
    with (
        trainer(copy.deepcopy(made), "grpo", 1) as alone,
        trainer(copy.deepcopy(made), "grpo", 3, sharding="full", then=then) as together,
    ):
        assert together.ranks is not None
        notes: list[str] = []
        together.ranks.note = notes.append
        for number in range(3):
            alone.update(batch)
            if number == 1:
                pid = together.rank_pids[1]
                os.kill(pid, signal.SIGKILL)
            together.update(batch)
        assert len(notes) == 1
        assert notes[0].startswith(f"rank 1 of the trainer (cpu, pid {pid}) was killed by SIGKILL")
        assert together.ranks.size == (2 if then == "shrink" else 3)
        assert_same_weights(alone, together, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["check_weights", "collect_state", "collect_weights"])
def test_an_update_whose_rank_is_killed_while_its_results_are_fetched_is_made_once(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = robot("token", dtype="float64")
    batch = episodes(made)
    fetch, killed = getattr(Ranks, method), []

    def kill_and_fetch(ranks: Ranks, **given: bool) -> object:
        if not killed and (given or method != "check_weights"):  # an update begins with a check too
            killed.append(ranks.peers[0].pid)
            os.kill(killed[0], signal.SIGKILL)
        return fetch(ranks, **given)

    monkeypatch.setattr(Ranks, method, kill_and_fetch)
    with (
        trainer(copy.deepcopy(made), "grpo", 1) as alone,
        trainer(copy.deepcopy(made), "grpo", 2, then="wait") as together,
    ):
        for _ in range(2):
            alone.update(batch)
            together.update(batch)
        assert killed and together.num_done == 2
        assert_same_weights(alone, together, 1e-6)


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
