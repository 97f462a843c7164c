"""Agents as users write them, and agents as nobody should: what the tests of agent processes run."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np


async def double(task, base_url):
    print("playing", task.content["n"])
    await asyncio.sleep(0)
    return 2.0 * task.content["n"]


def plain(task, base_url, rng):
    time.sleep(0.01)
    return {"reward": task.content["n"], "success": True, "drawn": rng.random(), "steps": 3}


async def everything(task, /, base_url, anthropic_base_url, *, api_key, model, seed, rng, own=7):
    said = [task.env, task.instruction, list(task.tags), task.id]
    said += [base_url, anthropic_base_url, api_key, model, seed, rng.random(), own]
    return {"said": said}


async def from_environment(task):
    names = ("OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY")
    before = {name: os.environ[name] for name in names}
    await asyncio.sleep(0.02)
    return {"said": before, "after": {name: os.environ[name] for name in names}, "added": os.environ["ADDED"]}


async def who(task, base_url):
    await asyncio.sleep(task.content.get("sleep", 0))
    return {"pid": os.getpid()}


RETURNS: dict[str, Any] = {
    "nan": float("nan"),
    "text": "0.5",
    "list": [1.0],
    "nan_in_dict": {"reward": float("inf")},
    "object_in_dict": {"reward": 1.0, "thing": object()},
    "odd_success": {"success": "yes"},
    "odd_steps": {"step_rewards": "123"},
    "none": None,
    "bool": False,
    "int": 3,
    "numpy": np.float32(0.5),
    "numpy_bool": np.bool_(True),
    "steps": {"step_rewards": [0.0, np.float64(0.5)], "success": False},
}


async def does(task, base_url):  # one episode per way of going wrong
    how = task.content["how"]
    if how in RETURNS:
        return RETURNS[how]
    await asyncio.sleep(0.05)  # so that others are under way too
    if how == "fine":
        await asyncio.sleep(task.content.get("sleep", 0.2))
        return 1.0
    if how == "library":
        json.loads("{")
    if how == "eat":
        task.content["eaten"] = bytes(1) * (600 << 20)
        time.sleep(30)
    if how in ("fork", "fork_forever"):
        return await _fork(how)
    raise_error(how)
    end_process(how)
    await end_from_elsewhere(how)
    await write_what_nobody_expects(how)
    await run_for_ever(how)
    await call_gateway(how, base_url)
    if how != "print":
        raise AssertionError(how)
    return 1.0


def raise_error(how):
    if how == "raise":
        raise KeyError("no such tool")
    if how == "group":
        raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])
    if how == "unreadable":

        class Unreadable(Exception):
            def __str__(self) -> str:
                raise RuntimeError("not even this")

        raise Unreadable
    if how == "exit":
        sys.exit(3)
    if how == "interrupt":
        raise KeyboardInterrupt


def end_process(how):
    if how == "hard_exit":
        os._exit(5)
    if how == "abort":
        os.abort()
    if how == "segfault":
        ctypes.string_at(0)
    if how == "kill_itself":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "close_everything":
        os.closerange(3, 1024)


async def end_from_elsewhere(how):
    if how == "exit_in_task":
        await asyncio.create_task(_exits())
    if how == "abort_in_thread":
        threading.Thread(target=os.abort).start()
        await asyncio.sleep(5)


async def write_what_nobody_expects(how):
    if how == "write_everywhere":
        for descriptor in range(3, 1024):
            try:
                os.write(descriptor, b"\x00garbage\n[1]\n")
            except OSError:
                continue
        await asyncio.sleep(5)
    if how == "print":
        print('\x00{"over": 1}\n' * 1000)
        sys.stderr.write("more\n")
        os.write(1, b"and \xff more\n")


async def run_for_ever(how):
    if how == "spin":
        while True:
            pass
    if how == "hold_python":
        re.match(r"(a+)+$", "a" * 60 + "b")
    if how == "never":
        await asyncio.Event().wait()
    if how == "never_ever":
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue


async def call_gateway(how, base_url):
    if how == "connect":
        async with httpx.AsyncClient() as client:
            await client.post(f"{base_url}/chat/completions")
    if how == "connect_elsewhere":
        async with httpx.AsyncClient() as client:
            await client.get("http://127.0.0.1:8/tool")


async def _fork(how):
    forked = os.fork()
    if how == "fork":
        await asyncio.sleep(0.05)
        return {"reward": 1.0, "is_copy": forked == 0}
    if forked == 0:
        time.sleep(600)
    return {"reward": 1.0, "forked": forked}


async def _exits() -> None:
    sys.exit(4)


def plain_does(task, base_url):
    how = task.content["how"]
    time.sleep(0.1)
    if how == "abort":
        os.abort()
    if how == "eat":
        task.content["eaten"] = bytes(1) * (600 << 20)
        time.sleep(600)
    if how == "sleep":
        time.sleep(600)
    if how == "fine":
        time.sleep(0.3)
    return 1.0


async def fails_at_first(task, base_url):
    """Cannot reach the gateway until a file says so, which each failure writes into."""
    count = Path(task.content["file"])
    done = len(count.read_text()) if count.exists() else 0
    if done < task.content["failures"]:
        count.write_text("x" * (done + 1))
        try:
            async with httpx.AsyncClient() as client:
                await client.post(f"{base_url}/chat/completions")
        except httpx.HTTPError as error:
            raise RuntimeError("the framework wraps it") from error
    return 1.0


def asks_too_much(task, base_url, temperature):
    return 1.0


async def yields(task, base_url):
    yield 1.0


NOT_A_FUNCTION = 3
