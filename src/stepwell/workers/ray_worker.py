"""The inside of a Ray actor that is a worker: the same frames, answered by the same hosts.

    parent: RayLink.call ─► answer_call(text, arrays) ─► SimulatorHost or GeneratorHost ─► (text, arrays)

A frame travels as its text (operation, header, kinds of the arrays) and its arrays. Ray keeps large arrays in
the object store of the node: both sides read them there, without a copy.

    group     methods                       thread
    default   answer_call                   an event loop; environments that do not wait block it in turn
    health    show_state, wait_for_end      another one, so that a long step does not look like death

Invariants
* The first frame says what to build. Every frame gets one answer: the result, or `error` with kind and text.
* Nothing here is restarted by Ray: `worker_process.py` decides that, as for any worker.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from stepwell.core import ConfigError
from stepwell.core.arrays import AnyArray
from stepwell.core.frames import Frame, decode_text, encode_text
from stepwell.core.process_memory import read_resident_mb
from stepwell.workers.heartbeat import PAGE_BYTES, CallTracker, HeartbeatPage
from stepwell.workers.hosts import GeneratorHost, SimulatorHost, build_engine
from stepwell.workers.shared_memory import create_shared_file
from stepwell.workers.worker_main import make_error_frame

Message = tuple[bytes, Sequence[AnyArray]]
HEALTH = "health"


class RayWorker:
    """A simulator or a generator inside an actor. `variables` are set before anything heavy is imported."""

    def __init__(self, name: str, run: str, variables: dict[str, str]) -> None:
        import ray

        self._node = ray.get_runtime_context().get_node_id()
        os.environ.update(variables)
        self._name, self._run, self._kind = name, run, ""
        descriptor = create_shared_file(PAGE_BYTES)
        self._page = HeartbeatPage(descriptor)
        os.close(descriptor)
        self._watch, self._num_calls = CallTracker(self._page), 0
        self._simulator: SimulatorHost | None = None
        self._generator: GeneratorHost | None = None

    async def answer_call(self, text: bytes, arrays: Sequence[AnyArray]) -> Message:
        """The answer to one frame."""
        self._num_calls += 1
        call = self._num_calls
        self._watch.begin_call(call)
        try:
            answer = await self._answer_frame(decode_text(text, arrays), call)
            words = encode_text(answer)
        except (Exception, SystemExit) as error:  # `sys.exit` must not end it
            answer = make_error_frame(error)
            words = encode_text(answer)
        finally:
            self._watch.end_call(call)
        return words, list(answer.arrays)

    async def show_state(self) -> dict[str, Any]:
        """What the parent and `stepwell cluster status` want to know."""
        return {
            "name": self._name,
            "run": self._run,
            "kind": self._kind,
            "pid": os.getpid(),
            "node": self._node,
            "memory_mb": read_resident_mb(),
            "stuck_s": self._page.stuck_s,
            "num_pending": self._page.num_calls,
            "num_calls": self._num_calls,
        }

    async def wait_for_end(self) -> None:
        """Never returns: a caller that waits for it notices at once that the actor has died."""
        await asyncio.Event().wait()

    async def _answer_frame(self, frame: Frame, call: int) -> Frame:
        progress = partial(self._watch.note_progress, call)
        if self._simulator is not None:
            if self._simulator.waits:
                return await self._simulator.answer_waiting_call(frame, progress)
            return self._simulator.answer_call(frame, progress)
        if self._generator is not None:
            return await self._generator.answer_call(frame)
        return self._build_host(frame)

    def _build_host(self, frame: Frame) -> Frame:
        sys.path += [path for path in frame.header["path"] if path not in sys.path]
        settings = frame.header["settings"]
        if frame.op == "simulator":
            self._simulator = SimulatorHost(settings)
        elif frame.op == "generator":
            engine = build_engine(settings["factory"], settings["settings"])
            self._generator = GeneratorHost(engine, _note_nothing)
        else:
            raise ConfigError(f"unknown kind of worker {frame.op!r}")
        self._kind = frame.op
        return Frame("ready", {"pid": os.getpid()})


def _note_nothing() -> None:
    """A generator's calls are one piece of work each."""
