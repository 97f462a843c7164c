"""A user's agent: found by its name, inspected, and called with the arguments in its signature.

    module:function            importable, or a module in the current folder
    folder/file.py:function

    async def agent(task, base_url): ...      a plain `def` works too, and runs in a thread

The arguments may be any of `OFFERED`, by name. An agent without an address among them is used unchanged: the
openai and anthropic clients find address and key in environment variables. Such an agent plays one episode at
a time in its process.
"""

from __future__ import annotations

import inspect
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stepwell.core import ConfigError, Task
from stepwell.core.user_code import find_user_function

OFFERED: dict[str, str] = {
    "task": "the task: .content, .instruction, .env, .seed, .id",
    "base_url": "address for the openai client (it ends in /v1)",
    "anthropic_base_url": "address for the anthropic client",
    "api_key": "key for either",
    "model": "name of the model",
    "seed": "a number of this episode's own",
    "rng": "random.Random(seed)",
}
_ADDRESSES = {"base_url", "anthropic_base_url"}
_EXAMPLE = "async def agent(task, base_url): ..."


@dataclass(frozen=True, slots=True)
class AgentTarget:
    """A function that plays episodes, and its arguments."""

    function: Callable[..., Any]
    positional: tuple[str, ...]
    by_name: tuple[str, ...]
    is_async: bool

    @property
    def needs_environment(self) -> bool:
        """Whether it gets no address, so that it needs environment variables."""
        return not _ADDRESSES & {*self.positional, *self.by_name}

    def call(self, offered: Mapping[str, Any]) -> Any:
        """Its return value, or an awaitable of it."""
        if self.needs_environment:
            os.environ.update(build_environment(offered))
        return self.function(
            *(offered[name] for name in self.positional), **{name: offered[name] for name in self.by_name}
        )


def build_arguments(job: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments that an agent may have, from a job in JSON."""
    root = job["base_url"]
    return {
        "task": Task.from_json(job["task"]),
        "base_url": f"{root}/v1",
        "anthropic_base_url": root,
        "api_key": job["api_key"],
        "model": job["model"],
        "seed": job["seed"],
        "rng": random.Random(job["seed"]),
    }


def build_environment(offered: Mapping[str, Any]) -> dict[str, str]:
    """Environment variables by which the clients find the gateway."""
    return {
        "OPENAI_BASE_URL": offered["base_url"],
        "OPENAI_API_KEY": offered["api_key"],
        "ANTHROPIC_BASE_URL": offered["anthropic_base_url"],
        "ANTHROPIC_API_KEY": offered["api_key"],
    }


def load_agent(target: str) -> AgentTarget:
    """The agent with this name; `ConfigError` says what is wrong."""
    return inspect_agent(target, find_user_function(target, f"agent {target!r}"))


def inspect_agent(target: str, function: Any) -> AgentTarget:
    """How `function` is called as an agent; `ConfigError` if it cannot be."""
    if not callable(function) or isinstance(function, type):
        raise ConfigError(f"agent {target!r} is {_describe_kind(function)}, not a function; write {_EXAMPLE}")
    called = function if inspect.isroutine(function) else function.__call__
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise ConfigError(f"agent {target!r} is a generator; it must return its reward: {_EXAMPLE}")
    positional, by_name = _find_arguments(target, function)
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)
    return AgentTarget(function, positional, by_name, is_async)


def _describe_kind(value: Any) -> str:
    return "a class" if isinstance(value, type) else f"a value of type {type(value).__name__}"


def _find_arguments(target: str, function: Callable[..., Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    positional: list[str] = []
    by_name: list[str] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if name in OFFERED:
            (positional if parameter.kind is parameter.POSITIONAL_ONLY else by_name).append(name)
        elif parameter.default is parameter.empty:
            raise ConfigError(
                f"agent {target!r} asks for {name!r}; it may ask, by name, for {', '.join(OFFERED)}, "
                f"and give anything else a default: {_EXAMPLE}"
            )
    return tuple(positional), tuple(by_name)
