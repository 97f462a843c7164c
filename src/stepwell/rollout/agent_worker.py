"""The process in which a user's agent runs: many episodes in one event loop.

    python -m stepwell.rollout.agent_worker JOBS RESULTS MARKS      three open descriptors

    JOBS ─► _read_messages (a thread) ─► _play_episode (a task, or a thread for a plain function) ─► RESULTS

One JSON object per line. In: first what to load, then `{"play": n, "job": …}`, `{"cancel": n}` and
`{"where": n}`. Out: `ready` or `refused`, then `{"over": n, …}` per episode, and `{"at": n, …}` where it was
asked. Standard output goes to the log only.

Invariants
* Whatever an episode raises, SystemExit included, ends that episode and no other.
* MARKS, shared with the parent, always holds the number of the episode whose code the event loop runs
  (0: none) and a count of such entries. After a crash, or while the loop is blocked, the parent knows
  which episode is to blame. Work in threads is not marked.
* The process never outlives its parent. It ends when JOBS is closed, and the kernel kills its whole
  process group when the parent ends, even while code that never releases the interpreter runs.
* What the agent forks cannot send results, and dies with the process.
"""

from __future__ import annotations

import asyncio
import contextvars
import faulthandler
import functools
import inspect
import json
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from stepwell.core import ConfigError
from stepwell.core.child_process import end_process_group, end_with_parent
from stepwell.core.user_code import format_own_lines, format_own_stack
from stepwell.rollout.agent_outcome import describe_failure, read_return
from stepwell.rollout.agent_process import MARKS_BYTES
from stepwell.rollout.agent_target import AgentTarget, build_arguments, load_agent

_EPISODE: contextvars.ContextVar[int] = contextvars.ContextVar("stepwell_episode", default=0)
Send = Callable[[dict[str, Any]], None]


class MarkedLoop(asyncio.SelectorEventLoop):
    """An event loop that marks whose code it runs."""

    def __init__(self, marks: memoryview) -> None:
        super().__init__()
        self.marks = marks
        self.is_copy = False

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """As in asyncio, marked. Every step of a task comes this way."""
        return super().call_soon(self._run_marked, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """As in asyncio, marked. Timers come this way."""
        return super().call_at(when, self._run_marked, callback, *args, context=context)

    def end_in_fork(self) -> None:
        """In a forked copy: finish the callback that runs now, then exit.

        Sockets are shared with the original; a copy that continued would read its answers.
        """
        self.is_copy, self.marks = True, memoryview(bytearray(MARKS_BYTES)).cast("q")
        self.call_soon(os._exit, 0)

    def _run_marked(self, callback: Callable[..., object], *args: Any) -> None:
        if self.is_copy:
            os._exit(0)
        self.marks[1] += 1
        self.marks[0] = _EPISODE.get()
        try:
            callback(*args)
        finally:
            self.marks[0] = 0


class AgentWorker:
    """Plays the episodes that its messages start."""

    def __init__(self, agent: AgentTarget, send: Send, marks: memoryview, concurrency: int) -> None:
        self._agent, self._send = agent, send
        self._loop = MarkedLoop(marks)
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="agent")
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._cancelled: set[int] = set()
        self._thread_ids: dict[int, int] = {}  # of episodes in threads
        os.register_at_fork(after_in_child=self._loop.end_in_fork)

    def serve(self, messages: Iterator[dict[str, Any]]) -> None:
        """Play until the messages end, which ends the process."""
        threading.Thread(target=self._read_messages, args=(messages,), name="listen", daemon=True).start()
        while True:
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                continue  # raised by a task that an agent started; who awaits that task gets it too

    def _read_messages(self, messages: Iterator[dict[str, Any]]) -> None:
        for message in messages:
            if "where" in message:  # answered here: the loop may be what is stuck
                self._send({"at": message["where"], "place": self._find_place(message["where"])})
                continue
            act = self._begin_episode if "play" in message else self._cancel_episode
            self._loop.call_soon_threadsafe(act, message)
        end_process_group()

    def _begin_episode(self, message: dict[str, Any]) -> None:
        number, context = message["play"], contextvars.copy_context()
        if self._agent.is_async:
            context.run(_EPISODE.set, number)
        self._tasks[number] = self._loop.create_task(
            self._play_episode(number, message["job"]), context=context
        )

    def _cancel_episode(self, message: dict[str, Any]) -> None:
        task = self._tasks.get(message["cancel"])
        if task is not None:
            self._cancelled.add(message["cancel"])
            task.cancel()

    def _find_place(self, number: int) -> str:
        """The agent's own lines that an episode runs now; empty if it only waits."""
        thread = self._thread_ids.get(number)
        if self._loop.marks[0] == number:
            thread = threading.main_thread().ident
        frame = sys._current_frames().get(thread or 0)
        return "" if frame is None else format_own_stack(frame)

    async def _play_episode(self, number: int, job: dict[str, Any]) -> None:
        started = time.perf_counter()
        try:
            outcome = {"status": "done"} | read_return(await self._call_agent(number, job))
        except BaseException as error:  # an agent that exits ends its episode, not the process
            outcome = describe_failure(error, job["base_url"])
        if number in self._cancelled:
            place = outcome.get("error", "")
            problem = f"no end within {job['timeout_s']:g} s" + (f"; it was at\n{place}" if place else "")
            outcome = {"status": "agent_error", "error": problem, "timed_out": True, "failure": "timed_out"}
        del self._tasks[number]
        self._cancelled.discard(number)
        self._send({"over": number, "wall_s": time.perf_counter() - started} | outcome)

    async def _call_agent(self, number: int, job: dict[str, Any]) -> Any:
        offered = build_arguments(job)
        if self._agent.is_async:
            return await self._agent.call(offered)
        value = await self._loop.run_in_executor(self._threads, self._call_in_thread, number, offered)
        return await value if inspect.isawaitable(value) else value

    def _call_in_thread(self, number: int, offered: dict[str, Any]) -> Any:
        self._thread_ids[number] = threading.get_ident()
        try:
            return self._agent.call(offered)
        finally:
            del self._thread_ids[number]


def read_messages(descriptor: int) -> Iterator[dict[str, Any]]:
    """The JSON lines of a pipe until its other end is closed."""
    with open(descriptor, "rb", closefd=False) as lines:
        for line in lines:
            yield json.loads(line)


def make_sender(descriptor: int) -> Send:
    """A function that writes whole lines. In a forked copy of the process it ends the copy instead."""
    owner, lock = os.getpid(), threading.Lock()

    def send(message: dict[str, Any]) -> None:
        if os.getpid() != owner:
            os._exit(0)
        line = memoryview(json.dumps(message).encode() + b"\n")
        with lock:
            while line:
                line = line[os.write(descriptor, line) :]

    return send


def load_or_report(hello: dict[str, Any], send: Send) -> AgentTarget | None:
    """The agent; or None, after its problem was reported to the parent."""
    sys.path += [path for path in hello["path"] if path not in sys.path]
    try:
        return load_agent(hello["target"])
    except ConfigError as error:
        send({"refused": str(error)})
    except BaseException as error:  # a user's module may raise anything while it is imported
        send({"refused": f"agent {hello['target']!r} cannot be imported:\n{format_own_lines(error)}"})
    return None


def main(arguments: list[str]) -> None:
    """Serve on the descriptors named by the arguments."""
    jobs, results, marks = (int(argument) for argument in arguments)
    for descriptor in (jobs, results, marks):
        os.set_inheritable(descriptor, False)
    end_with_parent()
    faulthandler.enable(all_threads=False)
    for descriptor in (jobs, results):  # a forked copy cannot speak for the process
        os.register_at_fork(after_in_child=functools.partial(os.close, descriptor))
    messages, send = read_messages(jobs), make_sender(results)
    hello = next(messages)
    agent = load_or_report(hello, send)
    if agent is None:
        return
    send({"ready": True, "is_async": agent.is_async, "needs_environment": agent.needs_environment})
    shared = memoryview(mmap.mmap(marks, MARKS_BYTES)).cast("q")
    AgentWorker(agent, send, shared, hello["concurrency"]).serve(messages)


if __name__ == "__main__":
    main(sys.argv[1:])
