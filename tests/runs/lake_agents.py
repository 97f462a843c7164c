"""Agents of a user's own, for tests: they talk to a chat API and know nothing of the trainer.

Every agent process imports this file: what takes a second to import is imported by the agent that needs it.
"""

from __future__ import annotations

import asyncio
import os
from functools import cache
from pathlib import Path
from typing import Any

import httpx

LAKE = {"size": 3, "max_turns": 2}


@cache
def open_client() -> Any:
    """A client of the vendor, one for all episodes of a process."""
    from openai import AsyncOpenAI

    return AsyncOpenAI(base_url="http://localhost", api_key="none")


@cache
def open_words() -> Any:
    """The prompts of the built-in agent."""
    from stepwell.agents import Agent
    from stepwell.config.run import AgentConfig
    from stepwell.envs import make_env

    return Agent(make_env("frozenlake", LAKE).description, AgentConfig())


@cache
def open_http() -> httpx.AsyncClient:
    """Plain HTTP, for agents that need no more."""
    return httpx.AsyncClient(timeout=600, verify=False)


async def ask(base_url: str, model: str, text: str, max_tokens: int) -> str:
    """What the model says to one message."""
    messages = [{"role": "user", "content": text}] if text else []
    body = {"model": model, "messages": messages, "max_tokens": max_tokens}
    answer = await open_http().post(f"{base_url}/chat/completions", json=body)
    if answer.is_error:
        raise httpx.HTTPStatusError(answer.text, request=answer.request, response=answer)
    return answer.json()["choices"][0]["message"]["content"] or ""


async def lake(task: Any, base_url: str, model: str, seed: int) -> dict[str, Any]:
    """The small lake of these tests, with the prompts of the built-in agent."""
    from stepwell.envs import make_env

    client, words = open_client().with_options(base_url=base_url), open_words()
    env = make_env("frozenlake", LAKE)
    observation, _ = env.reset(seed=seed, options={"task": task})
    messages = [
        {"role": "system", "content": words.system_prompt()},
        {"role": "user", "content": words.first_prompt(observation)},
    ]
    rewards, num_actions, is_over = [], 0, False
    while not is_over:
        answer = await client.chat.completions.create(model=model, messages=messages, max_tokens=64)
        text = answer.choices[0].message.content or ""
        reply = words.read(text)
        observation, reward, terminated, truncated, info = env.step(reply.actions)
        rewards.append(reward)
        num_actions += info["num_actions"]
        is_over = terminated or truncated
        messages += [
            {"role": "assistant", "content": text},
            {"role": "user", "content": words.next_prompt(observation)},
        ]
    return {"step_rewards": rewards, "success": bool(info["success"]), "num_actions": num_actions}


async def sometimes_raises(task: Any, base_url: str, model: str, seed: int) -> float:
    """One call, then an error for every other episode."""
    await ask(base_url, model, "Go.", 4)
    if seed % 2:
        raise RuntimeError("the tool broke")
    return 1.0


async def greets(task: Any, base_url: str, model: str) -> float:
    """Tasks from a file: rewarded for short greetings."""
    return 1.0 / (1 + len(await ask(base_url, model, f"Greet {task.content['name']}.", 6)))


async def miscounts(task: Any, base_url: str, model: str) -> dict[str, Any]:
    """One call, two rewards."""
    await ask(base_url, model, "Go.", 2)
    return {"step_rewards": [1.0, 1.0], "success": True}


async def always_raises(task: Any, base_url: str) -> float:
    """Fails before its first call."""
    return float(task.content["no_such_field"])


async def never_calls(task: Any, base_url: str) -> float:
    """Full marks, and the policy has no part in it."""
    return 1.0


async def is_refused(task: Any, base_url: str, model: str) -> float:
    """A request that no gateway takes."""
    await ask(base_url, model, "", 1)
    return 1.0


async def forgets(task: Any, base_url: str, model: str) -> None:
    """No return."""
    await ask(base_url, model, "Go.", 2)


async def hangs(task: Any, base_url: str, model: str) -> float:
    """Waits for ever."""
    await asyncio.Event().wait()
    return 1.0


async def fails_later(task: Any, base_url: str, model: str) -> float:
    """One call; what comes after it fails once a file says so."""
    await ask(base_url, model, "Go.", 2)
    if Path(os.environ["LAKE_AGENT_FAILS"]).exists():
        raise RuntimeError("the tool broke")
    return 1.0
