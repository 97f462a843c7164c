"""Three ways of one environment: in turn, waiting in threads, waiting on the event loop. All are equal.

`meet` waits until as many environments as `Meeting.expect` says are there at once. Environments that take
turns never get there, so that a test of overlap needs no clock.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
import time
from typing import Any, ClassVar

from stepwell.core import ActionSpace, EnvDescription, EnvError, Observation, Task
from stepwell.envs import AsyncEnv, Effect, Env

IN_TURN = "tests.envs.waiting_envs:InTurn"
IN_THREADS = "tests.envs.waiting_envs:InThreads"
ON_LOOP = "tests.envs.waiting_envs:OnLoop"
WAITING = (IN_THREADS, ON_LOOP)
PATIENCE_S = 60.0
NAMES = ("go", "meet", "raise", "exit", "interrupt", "cancel", "hang", "talk")


class Meeting:
    """Where environments wait for each other. In a simulator, four meet."""

    size: ClassVar[int] = 4
    in_threads: ClassVar[threading.Barrier] = threading.Barrier(4)
    on_loop: ClassVar[asyncio.Barrier] = asyncio.Barrier(4)

    @classmethod
    def expect(cls, size: int) -> None:
        """From now on so many meet."""
        cls.size, cls.in_threads, cls.on_loop = size, threading.Barrier(size), asyncio.Barrier(size)


class Walk:
    """The environment itself: a walk that chance pushes along. Without `waits` nobody can meet."""

    name: ClassVar[str] = "walk"
    place = 0.0

    @property
    def description(self) -> EnvDescription:
        return EnvDescription(self.name, "Walk.", ActionSpace(NAMES, 3), 1000)

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        return Task(cls.name, {"seed": seed}, seed=seed)

    def oracle(self) -> list[str]:
        return ["go"]

    def _begin(self, task: Task, seed: int) -> None:
        if task.content["seed"] == 13:
            raise RuntimeError("no such walk")
        self.rng, self.place = random.Random(seed), 0.0

    def _act(self, action: str) -> Effect:
        if action == "raise":
            raise RuntimeError("the way is closed")
        if action == "exit":
            sys.exit(3)
        if action == "interrupt":
            raise KeyboardInterrupt("not by a person")
        if action == "cancel":
            raise RuntimeError("Cancelled")
        self.place += self.rng.random()
        return Effect(self.place, terminated=self.place > 5, success=self.place > 5.5)

    def _look(self) -> Observation:
        return Observation(f"at {self.place:.6f}")


class InTurn(Walk, Env):
    """Stepped one after the other."""

    def begin(self, task: Task, seed: int) -> None:
        self._begin(task, seed)

    def act(self, action: str) -> Effect:
        return self._act(action)

    def observe(self) -> Observation:
        return self._look()


class InThreads(InTurn):
    """Waits in a thread; notes every thread that touches it. `talk` needs a child, like a browser."""

    waits: ClassVar[bool] = True

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.threads = [threading.get_ident()]
        self.child: subprocess.Popen[bytes] | None = None

    def begin(self, task: Task, seed: int) -> None:
        self.threads.append(threading.get_ident())
        self._end_child()
        super().begin(task, seed)

    def act(self, action: str) -> Effect:
        self.threads.append(threading.get_ident())
        if action == "meet":
            Meeting.in_threads.wait(PATIENCE_S)
        if action == "hang":
            time.sleep(1000)
        if action == "talk":
            self._talk()
        return super().act(action)

    def state(self) -> Any:
        self.threads.append(threading.get_ident())
        return super().state()

    def close(self) -> None:
        self.threads.append(threading.get_ident())
        self._end_child()

    def _talk(self) -> None:
        if self.child is None:
            self.child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert self.child.stdin is not None and self.child.stdout is not None
        try:
            self.child.stdin.write(b"?\n")
        except BrokenPipeError as error:
            raise EnvError("its child has died") from error
        if self.child.stdout.readline() != b"?\n":
            raise EnvError("its child has died")

    def _end_child(self) -> None:
        if self.child is not None:
            self.child.kill()
            self.child.communicate()
            self.child = None


class OnLoop(Walk, AsyncEnv):
    """Waits on the event loop."""

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.child: asyncio.subprocess.Process | None = None

    async def begin_async(self, task: Task, seed: int) -> None:
        await self.close_async()
        self._begin(task, seed)

    async def act_async(self, action: str) -> Effect:
        await asyncio.sleep(0)
        if action == "cancel":  # as if a part of it had been cancelled
            raise asyncio.CancelledError
        if action == "meet":
            await asyncio.wait_for(Meeting.on_loop.wait(), PATIENCE_S)
        if action == "hang":
            await asyncio.sleep(1000)
        if action == "talk":
            await self._talk()
        return self._act(action)

    async def observe_async(self) -> Observation:
        await asyncio.sleep(0)
        return self._look()

    async def close_async(self) -> None:
        if self.child is not None:
            if self.child.returncode is None:
                self.child.kill()
            await self.child.communicate()
            self.child = None

    async def _talk(self) -> None:
        if self.child is None:
            pipe = asyncio.subprocess.PIPE
            self.child = await asyncio.create_subprocess_exec("cat", stdin=pipe, stdout=pipe)
        assert self.child.stdin is not None and self.child.stdout is not None
        self.child.stdin.write(b"?\n")
        if await self.child.stdout.readline() != b"?\n":
            raise EnvError("its child has died")
