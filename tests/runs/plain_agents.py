"""Agents for tests of streaming runs: plain urllib, nothing of ours, quick to import."""

from __future__ import annotations

import asyncio
import json
import os
import time
import urllib.request
from pathlib import Path
from typing import Any


def ask(base_url: str, text: str, max_tokens: int = 4) -> str:
    """What the model says to one message."""
    body = {"model": "policy", "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens}
    request = urllib.request.Request(
        f"{base_url}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())["choices"][0]["message"]["content"] or ""


def calls_twice(task: Any, base_url: str, seed: int) -> dict[str, Any]:
    """Two calls, rewarded for short replies."""
    lengths = [len(ask(base_url, f"Say {word}.")) for word in ("yes", "no")]
    return {"step_rewards": [1.0 / (1 + length) for length in lengths], "success": seed % 2 == 0}


def waits_for_an_update(task: Any, base_url: str, seed: int) -> float:
    """Two calls; those of group 5 have an update in between."""
    ask(base_url, "Start.")
    metrics, until = Path(os.environ["PLAIN_AGENT_METRICS"]), time.monotonic() + 60
    updated = '"kind": "update"'
    while "-g5-" in base_url and updated not in metrics.read_text() and time.monotonic() < until:
        time.sleep(0.02)
    ask(base_url, "Go on.")
    return float(seed % 2)


async def crashes(task: Any, base_url: str, seed: int) -> float:
    """One call; every fifth episode then ends its process, and what else runs there."""
    await asyncio.to_thread(ask, base_url, "Go.")
    if seed % 5 == 0:
        os._exit(3)
    return float(seed % 2)


def fails_if_told(task: Any, base_url: str, seed: int) -> float:
    """One call; what comes after it fails while a file is there."""
    ask(base_url, "Go.")
    if Path(os.environ["PLAIN_AGENT_FAILS"]).exists():
        raise RuntimeError("the tool broke")
    return float(seed % 2)
