"""Environments that wait: the copies of one environment take their turns at once.

An environment that mostly waits (for a browser, for a server) says so: `waits = True` in its class. There are
two ways to wait, and the class decides:

    AsyncEnv      its coroutines are awaited together on the event loop of the process (`env_loop.py`)
    any other     its plain functions run in a thread; a batch has one per environment, at most `MAX_THREADS`

Invariants
* An environment without `waits` never gets here: no thread and no loop is made for it.
* In a thread, an environment is made, stepped, asked and closed always by the same one (synchronous browser
  drivers demand it). With more environments than threads, some share one and take turns there.
* One environment takes one turn at a time, in the order of the calls.
* The future of a turn never raises: an environment that does gives a `Turn` with its error.
"""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, TypeVar

from stepwell.core import Task
from stepwell.envs.async_env import AsyncEnv
from stepwell.envs.env_loop import start_on_env_loop
from stepwell.envs.env_thread import EnvThread
from stepwell.envs.turns import (
    Turn,
    make_failed_turn,
    note_failed_state,
    play_turn,
    play_turn_async,
    read_state,
    read_state_async,
    start_episode,
    start_episode_async,
)

MAX_THREADS = 32
_CLOSE_S = 30.0
_RAISED = (Exception, SystemExit, KeyboardInterrupt, asyncio.CancelledError)  # by environments on the loop
_log = logging.getLogger(__name__)
T = TypeVar("T")


class WaitingEnvs(Protocol):
    """Copies of an environment that waits."""

    envs: list[Any]

    def start_reset(self, index: int, task: Task, seed: int | None, with_state: bool) -> Future[Turn]:
        """Begin an episode in one environment."""

    def start_step(self, index: int, actions: Any, with_state: bool) -> Future[Turn]:
        """Begin one turn in one environment."""

    def ask(self, index: int, question: Callable[[Any], T]) -> T:
        """The answer of one environment, asked where it lives."""

    def close(self) -> None:
        """Close every environment, each within a limited time."""


def make_waiting_envs(kind: type, name: str, make: Callable[[], Any], size: int) -> WaitingEnvs:
    """`size` environments that `make` makes, of the class `kind`."""
    return LoopEnvs(name, make, size) if issubclass(kind, AsyncEnv) else ThreadEnvs(name, make, size)


class ThreadEnvs:
    """Environments in threads."""

    def __init__(self, name: str, make: Callable[[], Any], size: int) -> None:
        self._name = name
        threads = [EnvThread(f"stepwell-{name}-{number}") for number in range(min(size, MAX_THREADS))]
        self._threads = threads
        self._stop = weakref.finalize(self, _stop_threads, threads)
        made = [self._get_thread(index).submit(make) for index in range(size)]
        try:
            self.envs = [future.result() for future in made]
        except BaseException:
            self._stop()
            raise

    def start_reset(self, index: int, task: Task, seed: int | None, with_state: bool) -> Future[Turn]:
        return self._start_turn(index, partial(start_episode, self.envs[index], task, seed), with_state)

    def start_step(self, index: int, actions: Any, with_state: bool) -> Future[Turn]:
        return self._start_turn(index, partial(play_turn, self.envs[index], actions), with_state)

    def ask(self, index: int, question: Callable[[Any], T]) -> T:
        return self._get_thread(index).submit(partial(question, self.envs[index])).result()

    def close(self) -> None:
        if self._stop.alive:
            closing = [self._get_thread(index).submit(env.close) for index, env in enumerate(self.envs)]
            _await_closing(self._name, closing)
            self._stop()

    def _get_thread(self, index: int) -> EnvThread:
        return self._threads[index % len(self._threads)]

    def _start_turn(self, index: int, play: Callable[[], Turn], with_state: bool) -> Future[Turn]:
        env, name = self.envs[index], self._name

        def run() -> Turn:
            try:
                turn = play()
            except BaseException as error:  # Ctrl-C comes elsewhere
                return make_failed_turn(name, index, error)
            try:
                turn.state = read_state(env) if with_state else {}
            except BaseException as error:
                note_failed_state(turn, name, error)
            return turn

        return self._get_thread(index).submit(run)


class LoopEnvs:
    """Environments on the event loop."""

    def __init__(self, name: str, make: Callable[[], Any], size: int) -> None:
        self._name = name
        self.envs = [make() for _ in range(size)]
        self._turns = [asyncio.Lock() for _ in range(size)]

    def start_reset(self, index: int, task: Task, seed: int | None, with_state: bool) -> Future[Turn]:
        return self._start_turn(index, start_episode_async(self.envs[index], task, seed), with_state)

    def start_step(self, index: int, actions: Any, with_state: bool) -> Future[Turn]:
        return self._start_turn(index, play_turn_async(self.envs[index], actions), with_state)

    def ask(self, index: int, question: Callable[[Any], T]) -> T:
        return question(self.envs[index])

    def close(self) -> None:
        _await_closing(self._name, [start_on_env_loop(env.close_async()) for env in self.envs])

    def _start_turn(self, index: int, play: Coroutine[Any, Any, Turn], with_state: bool) -> Future[Turn]:
        return start_on_env_loop(self._play(index, play, with_state))

    async def _play(self, index: int, play: Coroutine[Any, Any, Turn], with_state: bool) -> Turn:
        async with self._turns[index]:
            try:
                turn = await play
            except _RAISED as error:
                return make_failed_turn(self._name, index, error)
            try:
                turn.state = await read_state_async(self.envs[index]) if with_state else {}
            except _RAISED as error:
                note_failed_state(turn, self._name, error)
            return turn


def _stop_threads(threads: Sequence[EnvThread]) -> None:
    for thread in threads:
        thread.stop()


def _await_closing(name: str, closing: Sequence[Future[None]]) -> None:
    """Wait for all; the first error is raised. One that hangs is left behind."""
    problems: list[BaseException] = []
    until = time.monotonic() + _CLOSE_S
    for index, future in enumerate(closing):
        try:
            future.result(max(0.0, until - time.monotonic()))
        except TimeoutError as error:
            if future.done():
                problems.append(error)
            else:
                _log.error("%s: environment %d does not close within %g s", name, index, _CLOSE_S)
        except Exception as error:
            problems.append(error)
    if problems:
        raise problems[0]
