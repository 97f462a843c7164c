"""A killed server costs the episodes it held, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from tests.runs.small import small_components

from stepwell.core import EnvError, Request, Sampled, Split, Status
from stepwell.envs import make_env
from stepwell.envs.batch import EnvBatch
from stepwell.rollout import Job

Start = Callable[[], tuple[str, subprocess.Popen[str]]]


class KillingSampler:
    """A sampler that has someone killed when it is asked for the second time."""

    def __init__(self, sampler: object, process: subprocess.Popen[str]) -> None:
        self._sampler, self._process, self._num_calls = sampler, process, 0

    def generate_blocking(self, requests: list[Request]) -> list[Sampled]:
        self._num_calls += 1
        if self._num_calls == 2:
            self._process.kill()
            self._process.wait()
        return self._sampler.generate_blocking(requests)  # type: ignore[attr-defined,no-any-return]


def test_a_killed_server_loses_its_episodes_and_later_ones_go_elsewhere(processes: Start) -> None:
    (one, dies), (two, _) = processes(), processes()
    batch = EnvBatch(f"remote:{one},{two}#frozenlake", {"max_turns": 5}, 4)
    tasks = [batch.envs[0].make_task(batch.envs[0].options, seed) for seed in range(4)]
    assert all(turn.error is None for turn in batch.reset(tasks))
    dies.kill()
    dies.wait()
    turns = batch.step(range(4), [()] * 4)
    lost = [turn.error for turn in turns if turn.error is not None]
    assert len(lost) == 2  # two of four were there
    assert all(isinstance(error, EnvError) and "cannot be reached" in str(error) for error in lost)
    again = batch.reset(tasks)
    assert [turn.error for turn in again] == [None] * 4
    assert [turn.error for turn in batch.step(range(4), [()] * 4)] == [None] * 4
    local = EnvBatch("frozenlake", {"max_turns": 5}, 4)
    assert again == local.reset(tasks)
    batch.close()


@pytest.mark.slow
def test_episodes_on_a_killed_server_are_infra_errors_and_are_played_again(processes: Start) -> None:
    (one, dies), (two, _) = processes(), processes()
    settings = ("recipe.name=grpo", "env.options.max_turns=3")
    calm = small_components(*settings)
    components = small_components(*settings, f"env.name=remote:{one},{two}#frozenlake")
    jobs = [Job(task, task.id, 7 + i) for i, task in enumerate(calm.tasks(Split.TRAIN, 6, 0))]
    components.runner.rollout.sampler = KillingSampler(components.runner.rollout.sampler, dies)
    rolled = components.runner.rollout.run(jobs, components.sampling_params(1.0), retries=0)
    assert rolled.failures and rolled.trajectories  # those there, and those elsewhere
    assert {t.status for t in rolled.failures} == {Status.INFRA_ERROR}
    assert not any(t.is_trainable for t in rolled.failures)
    components.engine.forget()
    calm.engine.forget()
    again = components.runner.rollout.run(jobs, components.sampling_params(1.0), retries=1)
    assert again.failures == []
    expected = calm.runner.run(jobs, calm.sampling_params(1.0)).trajectories
    assert [[s.action.text for s in t.steps] for t in again.trajectories] == [  # type: ignore[union-attr]
        [s.action.text for s in t.steps]  # type: ignore[union-attr]
        for t in expected
    ]


def test_a_reset_without_any_server_fails_and_a_new_server_is_found(processes: Start) -> None:
    one, dies = processes()
    env = make_env(f"remote:{one}#frozenlake")
    task = env.make_task(env.options, 0)
    env.reset(options={"task": task})
    dies.kill()
    dies.wait()
    with pytest.raises(EnvError, match="cannot be reached"):
        env.step(())
    with pytest.raises(EnvError, match="none of 1 env servers serves"):
        env.reset(options={"task": task})
    with pytest.raises(EnvError, match="none of 1 env servers serves"):
        make_env("remote:http://127.0.0.1:1#frozenlake")


def test_a_full_server_sends_its_callers_to_another(service: Callable[..., str]) -> None:
    small, large = service(max_sessions=1), service()
    envs = [make_env(f"remote:{small},{large}#frozenlake") for _ in range(4)]
    for seed, env in enumerate(envs):
        env.reset(seed=seed)
        env.step(())
    assert [httpx.get(f"{url}/envs").json()["num_sessions"] for url in (small, large)] == [1, 3]
    for env in envs:
        env.close()


def test_an_expired_session_is_an_infra_error_and_the_next_reset_opens_a_new_one(
    service: Callable[..., str],
) -> None:
    url = service(session_timeout_s=0.9)
    env = make_env(f"remote:{url}#frozenlake")
    env.reset(seed=0)
    time.sleep(1.2)
    env.step(())  # kept alive by heartbeats
    server = env._visit._server
    server.forget_session(env._visit._id)  # a caller that sends none
    until = time.monotonic() + 30
    while httpx.get(f"{url}/envs").json()["num_expired"] == 0:
        assert time.monotonic() < until, "it did not expire"
        time.sleep(0.05)
    with pytest.raises(EnvError, match="was closed, has expired"):
        env.step(())
    env.reset(seed=0)
    env.step(())
    env.close()


def test_a_service_with_a_hanging_environment_can_be_stopped(tmp_path: Path) -> None:
    (tmp_path / "envs.toml").write_text("call_timeout_s = 1.0\nnum_threads = 1\n")
    name = "tests.services.envs.misbehaving_envs:Stubborn"
    command = [sys.executable, "-m", "stepwell", "serve", "envs", "--port", "0", "--env", name]
    process = subprocess.Popen(
        [*command, "--config", str(tmp_path / "envs.toml")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    url = process.stdout.readline().removeprefix("listening on ").strip()
    env = make_env(f"remote:{url}#{name}")
    env.reset(seed=0)
    with pytest.raises(EnvError, match="took longer than call_timeout_s"):
        env.step(("Up",))
    assert httpx.get(f"{url}/ready").json() == {"ready": True, "num_sessions": 0, "num_stuck": 1}
    env.reset(seed=0)  # in a thread of its own again
    process.terminate()
    process.wait(timeout=60)
    process.stdout.close()


def test_many_threads_play_on_one_service(url: str) -> None:
    problems: list[Exception] = []

    def play(seed: int) -> None:
        try:
            local, remote = make_env("frozenlake"), make_env(f"remote:{url}#frozenlake")
            for number in range(10):
                assert local.reset(seed=seed + number) == remote.reset(seed=seed + number)
                assert local.step(("Up", "Left")) == remote.step(("Up", "Left"))
            remote.close()
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=play, args=(100 * number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
