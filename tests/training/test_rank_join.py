"""Ranks that another launcher starts: they meet by environment variables, and join again after a death."""

from __future__ import annotations

import copy
import os
import signal
import socket
from pathlib import Path

import pytest
from tests.policies.vla.made import policy as robot
from tests.processes import LIMIT_S, start_module
from tests.training.test_array_training import episodes
from tests.training.test_ranks import assert_same_update, assert_same_weights, own_folder, trainer

from stepwell.algos.recipes import RECIPES
from stepwell.config.training import TrainConfig
from stepwell.core import ConfigError, WorkerError
from stepwell.training import Trainer
from stepwell.training.rank_join import JoinLauncher, Rendezvous, join_ranks
from stepwell.training.rank_link import find_interface, send_message

__all__ = ["own_folder"]  # a fixture
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "node0", "MASTER_PORT": "29500", "LOCAL_RANK": "1"}


def find_port() -> int:
    """A port whose next one is free too."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = int(server.getsockname()[1])
        try:
            with socket.create_server(("127.0.0.1", port + 1)):
                return port
        except OSError:
            continue


def test_the_variables_of_torchrun_say_where_ranks_meet() -> None:
    found = Rendezvous.read_environment(TORCHRUN | {"TORCHELASTIC_RUN_ID": "run"})
    assert found == Rendezvous(3, 4, "node0", 29501, "run", 1)
    assert found.choose_device("cuda:0") == "cuda:1" and found.choose_device("cpu") == "cpu"
    assert Rendezvous.read_environment({}) is None
    assert Rendezvous.read_environment(TORCHRUN | {"WORLD_SIZE": "1"}) is None
    with pytest.raises(ConfigError, match="MASTER_PORT"):
        Rendezvous.read_environment({k: v for k, v in TORCHRUN.items() if k != "MASTER_PORT"})


def test_ranks_use_the_interface_that_reaches_the_run() -> None:
    loopback = find_interface("127.0.0.1")
    assert loopback is not None and loopback in {name for _, name in socket.if_nameindex()}
    assert find_interface("localhost") == loopback
    assert find_interface("no-such-host.invalid") is None


def test_a_port_that_is_taken_is_named_with_what_to_set() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port}, MASTER_PORT \+ 1 .*--rdzv-endpoint"):
            JoinLauncher(Rendezvous(0, 2, "127.0.0.1", port, "secret"), "cpu")


@pytest.mark.slow
def test_a_rank_without_a_run_and_a_run_without_its_ranks_say_so(tmp_path: Path) -> None:
    port = find_port()
    with pytest.raises(WorkerError, match=rf"no run listens at 127.0.0.1, port {port}"):
        join_ranks("127.0.0.1", port, rank=1, device="cpu", wait_s=0.1)
    launcher = JoinLauncher(Rendezvous(0, 2, "127.0.0.1", port, "secret"), "cpu", wait_s=0.5)
    made = robot("token")
    lonely = Trainer(made, RECIPES["grpo"], TrainConfig(), launcher=launcher)
    lonely.freeze_reference()
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        send_message(stranger, {"rank": 1, "device": "cpu", "token": "guessed", "pid": 1})
        with pytest.raises(WorkerError, match=r"1 of 2 ranks have joined within 0.5 s"):
            lonely.update(episodes(made))
        assert stranger.recv(1) == b""
    launcher.close()


@pytest.mark.slow
def test_joined_ranks_train_and_those_left_go_on_after_one_was_killed() -> None:
    port = find_port()
    joiners = [start_module("tests.training.rank_joiner", str(rank), str(port)) for rank in (1, 2)]
    launcher = JoinLauncher(
        Rendezvous(0, 3, "127.0.0.1", port + 1, "secret"), "cpu", wait_s=120, fewer_after_s=10
    )
    made = robot("token", dtype="float64")
    batch = episodes(made)
    config = TrainConfig.model_validate({"optimizer": {"learning_rate": 1e-3}, "sharding": "full"})
    together = Trainer(
        copy.deepcopy(made),
        RECIPES["grpo"],
        config,
        horizon=2,
        launcher=launcher,
        on_dead_rank="shrink",
        rank_timeout_s=60,
    )
    together.freeze_reference()
    assert together.ranks is not None
    notes: list[str] = []
    together.ranks.note = notes.append
    try:
        with trainer(copy.deepcopy(made), "grpo", 1) as alone:
            assert_same_update(alone, together, batch, 1e-5)
            assert together.ranks.size == 3 and not notes
            pid = together.rank_pids[2]
            os.kill(pid, signal.SIGKILL)
            assert_same_update(alone, together, batch, 1e-5)
            assert together.ranks.size == 2
            assert notes == [
                f"rank 2 of the trainer (127.0.0.1, cpu, pid {pid}) closed its connection; "
                "the update runs again on the ranks that are left"
            ]
            assert_same_weights(alone, together, 1e-6)
        together.close()
        launcher.close()
        assert all(joiner.wait(LIMIT_S) for joiner in joiners)
    finally:
        together.close()
        launcher.close()
        codes = sorted(joiner.kill() for joiner in joiners)
    assert codes == [0, 247], [
        joiner.log_tail() for joiner in joiners
    ]  # 247: killed by SIGKILL, as an exit code
