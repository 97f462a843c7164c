"""Agents with the real openai and anthropic clients, in processes, against the real gateway."""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.variants import keep_quick

from stepwell.agents import Agent
from stepwell.config.engine import EngineConfig
from stepwell.config.loading import load_config
from stepwell.config.run import AgentConfig
from stepwell.core import (
    EngineError,
    FinishReason,
    Request,
    Sampled,
    Sampling,
    SamplingParams,
    Split,
    Status,
    Task,
    TokenAction,
    VersionSpan,
)
from stepwell.engines import EmbeddedEngine
from stepwell.envs import EnvBatch, draw_tasks, make_env
from stepwell.policies import CausalLMPolicy, resolve_model
from stepwell.pool import Pool, open_pool
from stepwell.rendering import Renderer, load_tokenizer
from stepwell.rollout import AgentJob, AgentProcesses, AgentResult, Job, LanguagePlayer, Rollout
from stepwell.services.gateway.app import create_app
from stepwell.services.gateway.gateway import Gateway
from stepwell.services.http_server import serve_in_thread

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
CLIENTS = Path(__file__).parent / "client_agents.py"


def example(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(resolve_model("tiny-0.3m"))


@pytest.fixture(scope="module")
def engine(tokenizer: Any) -> Iterator[EmbeddedEngine]:
    policy = CausalLMPolicy.from_pretrained(resolve_model("tiny-0.3m"))
    made = EmbeddedEngine(
        policy.model, tokenizer, EngineConfig(max_batch_size=16, num_slots=16, max_length=512)
    )
    yield made
    made.close()


class Walker:
    """Stands where an engine stands: walks at random, now and then unreadably; the seed decides."""

    def __init__(self, tokenizer: Any, end_id: int) -> None:
        self.tokenizer, self.end_id = tokenizer, end_id

    def generate_blocking(self, requests: Sequence[Request]) -> list[Sampled]:
        return [self._answer(request) for request in requests]

    async def generate(self, requests: Sequence[Request]) -> list[Sampled]:
        return self.generate_blocking(requests)

    def _answer(self, request: Request) -> Sampled:
        rng = random.Random(request.params.seed)
        moves = rng.choices(("Up", "Down", "Left", "Right"), k=rng.randint(1, 3))
        text = "?" if rng.random() < 0.2 else f"<answer>{','.join(moves)}</answer>"
        ids = np.array([*self.tokenizer.encode(text, add_special_tokens=False), self.end_id], np.int32)
        sampling = Sampling(seed=request.params.seed, finish_reason=FinishReason.STOP)
        return Sampled(TokenAction(ids, text), np.zeros(len(ids), np.float32), sampling, VersionSpan.at(0))


class Down:
    """An engine that is gone."""

    async def generate(self, requests: Sequence[Request]) -> list[Sampled]:
        raise EngineError("the engine is gone")


@contextmanager
def serving(sampler: Any, tokenizer: Any, folder: Path) -> Iterator[tuple[str, Pool]]:
    pool = open_pool(folder / "pool.db")
    url, stop = serve_in_thread(create_app(Gateway(sampler, Renderer(tokenizer), pool)))
    yield url, pool
    stop()
    pool.close()


@pytest.fixture(scope="module")
def gateway(
    engine: EmbeddedEngine, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Pool]]:
    """The address of a gateway before the engine, and its pool."""
    with serving(engine, tokenizer, tmp_path_factory.mktemp("gateway")) as served:
        yield served


@pytest.mark.slow
@pytest.mark.parametrize("who", ["walker", "engine"])
def test_the_lake_agent_plays_through_the_gateway_what_the_native_loop_plays(
    who: str,
    tokenizer: Any,
    engine: EmbeddedEngine,
    gateway: tuple[str, Pool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lake = example("frozenlake_agent", monkeypatch)
    renderer = Renderer(tokenizer)
    sampler = engine if who == "engine" else Walker(tokenizer, renderer.end_ids[0])
    tasks = draw_tasks("frozenlake", lake.LAKE, Split.TRAIN, 12 if who == "engine" else 48, seed=0)
    seeds = [2**61 + 7 * place for place in range(len(tasks))]
    native = Rollout(
        EnvBatch("frozenlake", lake.LAKE, size=len(tasks)),
        LanguagePlayer(
            Agent(make_env("frozenlake", lake.LAKE).description, AgentConfig(guide=False)),
            renderer,
            parts=("task", "format"),
        ),
        sampler,
    )
    params = SamplingParams(max_tokens=8, stop_ids=renderer.end_ids)
    rolled = native.run([Job(t, t.id, s) for t, s in zip(tasks, seeds, strict=True)], params).trajectories
    with ExitStack() as stack:
        walking = who == "walker" and stack.enter_context(serving(sampler, tokenizer, tmp_path))
        url, pool = walking or gateway
        jobs = [
            AgentJob(f"lake{place}", task, f"{url}/s/lake{place}", seed=seed)
            for place, (task, seed) in enumerate(zip(tasks, seeds, strict=True))
        ]
        with AgentProcesses(f"{EXAMPLES}/frozenlake_agent.py:agent", concurrency=12) as agents:
            results = agents.run(jobs)
        played = [pool.get(result.id).trajectory for result in results]
    assert [result.status for result in results] == ["done"] * len(tasks)
    for result, ours, theirs in zip(results, played, rolled, strict=True):
        assert len(ours.steps) == len(theirs.steps)
        for one, other in zip(ours.steps, theirs.steps, strict=True):
            np.testing.assert_array_equal(one.state.prompt_ids, other.state.prompt_ids)  # type: ignore[union-attr]
            np.testing.assert_array_equal(one.action.action_ids, other.action.action_ids)  # type: ignore[union-attr]
            np.testing.assert_allclose(one.behavior_logprobs, other.behavior_logprobs, atol=1e-4)
        assert result.step_rewards == pytest.approx([step.reward for step in theirs.steps])
        assert result.success is (theirs.status is Status.SUCCESS)
        assert result.info["num_actions"] == theirs.info["num_actions"]
    if who == "walker":
        assert {t.status for t in rolled} == {Status.SUCCESS, Status.FAILURE}


def test_the_lake_agent_has_its_presets_env_words_and_rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    lake = example("frozenlake_agent", monkeypatch)
    preset = load_config("frozenlake-easy")
    assert preset.env.options == lake.LAKE and preset.agent == AgentConfig(guide=False)
    assert (
        preset.rewards.format == lake.FORMAT
        and preset.recipe.reward_parts == ("task", "format")
        and preset.sampling.max_tokens == 8
    )


def test_the_tool_agents_demonstrations_are_exact_conversations_with_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demos = example("tool_agent_demos", monkeypatch)
    todo = demos.tasks(2)
    results: list[AgentResult] = demos.demonstrate(tmp_path / "demos.db", todo, noise=0.0)
    assert [(r.status, r.reward) for r in results] == [("done", 1.0)] * 14  # the middle finds all in three
    with_pool = open_pool(tmp_path / "demos.db")
    stored = [with_pool.get(result.id) for result in results]
    with_pool.close()
    for item, task in zip(stored, todo, strict=True):
        steps = item.trajectory.steps
        assert item.trajectory.task == task and item.channel == "user"
        assert item.trajectory.status is Status.SUCCESS
        assert len(steps) == {4: 1, 2: 2, 6: 2}.get(task.content["number"], 3)  # type: ignore[call-overload]
        assert [step.reward for step in steps] == [0.0] * (len(steps) - 1) + [1.0]
        for before, after in pairwise(steps):
            exact = np.concatenate([before.state.prompt_ids, before.action.action_ids])  # type: ignore[union-attr]
            np.testing.assert_array_equal(after.state.prompt_ids[: exact.size], exact)  # type: ignore[union-attr]


def test_the_tool_agent_is_short() -> None:
    lines = (EXAMPLES / "tool_agent.py").read_text().splitlines()
    start = lines.index("async def agent(task, base_url, api_key, model):")
    body = lines[start : lines.index("def find(number: int, arguments: str) -> str:")]
    assert len([line for line in body if line.strip()]) <= 30


CLIENT_AGENTS = ("with_openai", "with_anthropic", "plain_openai", "as_it_is")


@pytest.mark.parametrize("function", keep_quick(CLIENT_AGENTS, CLIENT_AGENTS[:2].__contains__))
def test_an_agent_of_either_client_leaves_one_exact_step_per_call(
    function: str, tokenizer: Any, gateway: tuple[str, Pool]
) -> None:
    url, pool = gateway
    names = [f"{function}-{n}" for n in range(3)]
    jobs = [AgentJob(name, Task("talk", {}), f"{url}/s/{name}", seed=n) for n, name in enumerate(names)]
    with AgentProcesses(f"{CLIENTS}:{function}", concurrency=3) as agents:
        results = agents.run(jobs)
    assert [(r.status, r.error) for r in results] == [("done", "")] * 3
    for result in results:
        steps = pool.get(result.id).trajectory.steps
        shown = [tokenizer.decode(step.action.action_ids) for step in steps]  # type: ignore[union-attr]
        assert [text.removesuffix("<|im_end|>").strip() for text in shown] == result.info["said"]
        assert len(steps) == 2
        exact = np.concatenate([steps[0].state.prompt_ids, steps[0].action.action_ids])  # type: ignore[union-attr]
        np.testing.assert_array_equal(steps[1].state.prompt_ids[: exact.size], exact)  # type: ignore[union-attr]


def test_an_engine_that_is_gone_is_one_infra_error(tokenizer: Any, tmp_path: Path) -> None:
    with serving(Down(), tokenizer, tmp_path) as (url, _):
        agents = AgentProcesses(f"{CLIENTS}:with_openai", retries=1, backoff_s=0.01)
        (result,) = agents.run([AgentJob("e", Task("talk", {}), f"{url}/s/e")])
        agents.close()
    assert (result.status, result.num_tries) == ("infra_error", 2)
    assert "the engine is gone" in result.error


def test_what_the_gateway_refuses_is_the_agents_error(gateway: tuple[str, Pool]) -> None:
    with AgentProcesses(f"{CLIENTS}:asks_nonsense") as agents:
        (result,) = agents.run([AgentJob("e", Task("talk", {}), f"{gateway[0]}/s/nonsense")])
    assert (result.status, result.num_tries) == ("agent_error", 1)
    assert "BadRequestError" in result.error
