"""Demonstrations for `tool_agent.py`, by an expert that errs, recorded through the gateway.

    python examples/tool_agent_demos.py runs/number      # writes tasks.jsonl and demos.db there

A model that starts from random weights calls no tool by chance, so it first imitates someone who
does. The agent is run as it is; where an engine would answer its calls stands an expert, who takes
the middle of what is left, or half of the time any number. What the gateway records of that, the
pool `demos.db`, is what the model is taught before it learns from episodes of its own.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from tool_agent import LARGEST

from stepwell.config.gateway import GatewayConfig
from stepwell.core import FinishReason, Request, Sampled, Sampling, Task, TokenAction, VersionSpan
from stepwell.policies import resolve_model
from stepwell.pool import open_pool
from stepwell.rendering import Renderer, load_tokenizer
from stepwell.rollout import AgentJob, AgentProcesses, AgentResult
from stepwell.services.gateway.app import create_app
from stepwell.services.gateway.gateway import Gateway
from stepwell.services.http_server import serve_in_thread

AGENT = f"{Path(__file__).parent / 'tool_agent.py'}:agent"
NUM_ROUNDS, NOISE = 60, 0.5
NO_LOGPROBS = np.zeros(0, dtype=np.float32)  # nobody sampled what an expert says


class Expert:
    """Stands where an engine stands, and knows no more than a model would: the prompt."""

    def __init__(self, tokenizer: Any, end_id: int, noise: float) -> None:
        self.tokenizer, self.end_id, self.noise = tokenizer, end_id, noise

    async def generate(self, requests: Sequence[Request]) -> list[Sampled]:
        return [self.answer(request) for request in requests]

    def answer(self, request: Request) -> Sampled:
        rng = random.Random(request.params.seed)
        low, high = 1, LARGEST
        prompt = self.tokenizer.decode(request.state.prompt_ids)
        for guess, told in re.findall(r'"number": (\d+)}}</tool_call>[^}]*\n(up|down)', prompt):
            low, high = (max(low, int(guess) + 1), high) if told == "up" else (low, min(high, int(guess) - 1))
        number = rng.randint(1, LARGEST) if rng.random() < self.noise else (low + high) // 2
        call = json.dumps({"name": "find", "arguments": {"number": number}})
        text = f"<tool_call>{call}</tool_call>"
        ids = [*self.tokenizer.encode(text, add_special_tokens=False), self.end_id]
        sampling = Sampling(seed=request.params.seed, finish_reason=FinishReason.GIVEN)
        return Sampled(TokenAction(np.array(ids, np.int32), text), NO_LOGPROBS, sampling, VersionSpan.at(0))


def tasks(num_rounds: int) -> list[Task]:
    """Every number, in so many rounds."""
    return [
        Task("tasks", {"number": n, "round": r}) for r in range(num_rounds) for n in range(1, LARGEST + 1)
    ]


def demonstrate(pool: Path, todo: Sequence[Task], noise: float = NOISE) -> list[AgentResult]:
    """Run the agent on every task with the expert behind the gateway; what was said is in the pool."""
    tokenizer = load_tokenizer(resolve_model("tiny-0.3m"))
    renderer = Renderer(tokenizer)
    stored = open_pool(pool)
    expert = Expert(tokenizer, renderer.end_ids[0], noise)
    gateway = Gateway(expert, renderer, stored, GatewayConfig(seed=0))  # the same demonstrations every time
    url, stop = serve_in_thread(create_app(gateway))

    def complete(result: AgentResult) -> None:
        status = "agent_error" if result.status != "done" else "success" if result.success else "failure"
        body = {"status": status, "reward": result.reward or 0.0, "error": result.error}
        http.post(f"/sessions/{result.id}/complete", json=body).raise_for_status()

    try:
        with httpx.Client(base_url=url) as http, AgentProcesses(AGENT, concurrency=16) as agents:
            jobs = []
            for place, task in enumerate(todo):
                told = {"id": f"demo-{place}", "task": {"env": task.env, "content": task.content}}
                http.post("/sessions", json=told | {"channel": "user"}).raise_for_status()
                jobs.append(AgentJob(told["id"], task, f"{url}/s/{told['id']}", seed=place))
            return agents.run(jobs, complete)
    finally:
        stop()
        stored.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=NUM_ROUNDS, help="demonstrations of every number")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    todo = tasks(args.rounds)
    with (args.folder / "tasks.jsonl").open("w") as lines:
        lines.writelines(json.dumps(task.content) + "\n" for task in todo)
    results = demonstrate(args.folder / "demos.db", todo)
    found = sum(bool(result.success) for result in results) / len(results)
    print(f"{len(results)} demonstrations in {args.folder / 'demos.db'}, {found:.0%} of the numbers found")


if __name__ == "__main__":
    main()
