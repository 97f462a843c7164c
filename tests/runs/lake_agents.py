"""Agents of a user's own, for tests: they talk to a chat API and know nothing of the trainer."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from stepwell.agents import Agent
from stepwell.config.run import AgentConfig
from stepwell.envs import make_env

CLIENT = AsyncOpenAI(base_url="http://localhost", api_key="none")
LAKE = {"size": 3, "max_turns": 2}
WORDS = Agent(make_env("frozenlake", LAKE).description, AgentConfig())


async def lake(task: Any, base_url: str, model: str, seed: int) -> dict[str, Any]:
    """The small lake of these tests, with the prompts of the built-in agent."""
    client = CLIENT.with_options(base_url=base_url)
    env = make_env("frozenlake", LAKE)
    observation, _ = env.reset(seed=seed, options={"task": task})
    messages = [
        {"role": "system", "content": WORDS.system()},
        {"role": "user", "content": WORDS.first(observation)},
    ]
    rewards, num_actions, is_over = [], 0, False
    while not is_over:
        answer = await client.chat.completions.create(model=model, messages=messages, max_tokens=64)
        text = answer.choices[0].message.content or ""
        reply = WORDS.read(text)
        observation, reward, terminated, truncated, info = env.step(reply.actions)
        rewards.append(reward)
        num_actions += info["num_actions"]
        is_over = terminated or truncated
        messages += [
            {"role": "assistant", "content": text},
            {"role": "user", "content": WORDS.next(observation)},
        ]
    return {"step_rewards": rewards, "success": bool(info["success"]), "num_actions": num_actions}


async def sometimes_raises(task: Any, base_url: str, model: str, seed: int) -> float:
    """One call, then an error for every other episode."""
    client = CLIENT.with_options(base_url=base_url)
    messages = [{"role": "user", "content": "Go."}]
    await client.chat.completions.create(model=model, messages=messages, max_tokens=4)
    if seed % 2:
        raise RuntimeError("the tool broke")
    return 1.0


async def greets(task: Any, base_url: str, model: str) -> float:
    """Tasks from a file: rewarded for short greetings."""
    client = CLIENT.with_options(base_url=base_url)
    messages = [{"role": "user", "content": f"Greet {task.content['name']}."}]
    answer = await client.chat.completions.create(model=model, messages=messages, max_tokens=6)
    return 1.0 / (1 + len(answer.choices[0].message.content or ""))


async def miscounts(task: Any, base_url: str, model: str) -> dict[str, Any]:
    """One call, two rewards."""
    messages = [{"role": "user", "content": "Go."}]
    await CLIENT.with_options(base_url=base_url).chat.completions.create(
        model=model, messages=messages, max_tokens=2
    )
    return {"step_rewards": [1.0, 1.0], "success": True}


async def always_raises(task: Any, base_url: str) -> float:
    """Fails before its first call."""
    return float(task.content["no_such_field"])


async def never_calls(task: Any, base_url: str) -> float:
    """Full marks, and the policy has no part in it."""
    return 1.0


async def is_refused(task: Any, base_url: str, model: str) -> float:
    """A request that no gateway takes."""
    await CLIENT.with_options(base_url=base_url).chat.completions.create(model=model, messages=[])
    return 1.0


async def hangs(task: Any, base_url: str, model: str) -> float:
    """Waits for ever."""
    await asyncio.Event().wait()
    return 1.0


async def fails_later(task: Any, base_url: str, model: str) -> float:
    """One call; what comes after it fails once a file says so."""
    messages = [{"role": "user", "content": "Go."}]
    client = CLIENT.with_options(base_url=base_url)
    await client.chat.completions.create(model=model, messages=messages, max_tokens=2)
    if Path(os.environ["LAKE_AGENT_FAILS"]).exists():
        raise RuntimeError("the tool broke")
    return 1.0
