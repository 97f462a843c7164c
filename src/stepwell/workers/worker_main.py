"""The process of a worker: builds what it is told to, then answers calls until its parent is gone.

    python -m stepwell.workers.worker_main SOCKET LIFELINE MARKS HEARTBEAT_S     three open descriptors

    simulator   receive ─► answer ─► send           one thread: no hand-over between threads per step
    generator   receive ─► task per call ─► send    an event loop, which the engine's batcher needs

Invariants
* The first frame says what to build. Every frame is answered by one: the result, or `error` with its
  kind and words.
* The process never outlives its parent: it ends when the socket does, and the kernel ends its whole
  process group when LIFELINE does, even while code that never lets go of Python runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from stepwell.core import ConfigError, StepwellError
from stepwell.core.frames import Frame
from stepwell.envs.codecs import pack_error
from stepwell.rollout.agent_worker import die_with, end_process_group
from stepwell.workers.heartbeat import Marks, start_heart
from stepwell.workers.hosts import GeneratorHost, SimulatorHost, build_engine
from stepwell.workers.shared_link import Link


def serve_simulator(link: Link, marks: Marks, call: int, settings: dict[str, Any]) -> None:
    """Build the worlds and step them until the parent closes its end."""
    host = _built(link, call, partial(SimulatorHost, settings, marks.progress))
    while host is not None:
        frames = link.receive()
        if frames is None:
            host.close()
            return
        for call, frame in frames:
            marks.begin()
            try:
                answer = host.answer(frame)
            except (Exception, SystemExit) as error:  # an environment's `sys.exit` ends no simulator
                answer = error_frame(error)
            marks.end()
            _send(link, call, answer)


async def serve_generator(link: Link, marks: Marks, call: int, settings: dict[str, Any]) -> None:
    """Build the engine and sample until the parent closes its end."""
    engine = _built(link, call, partial(build_engine, settings["factory"], settings["settings"]))
    if engine is None:
        return
    host, tasks, over = GeneratorHost(engine, marks.progress), set[asyncio.Task[None]](), asyncio.Event()

    async def answered(call: int, frame: Frame) -> None:
        try:
            answer = await host.answer(frame)
        except Exception as error:
            answer = error_frame(error)
        marks.end()
        _send(link, call, answer)

    def on_readable() -> None:
        frames = link.receive()
        if frames is None:
            over.set()
            return
        for call, frame in frames:
            marks.begin()
            task = asyncio.create_task(answered(call, frame))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    asyncio.get_running_loop().add_reader(link.socket, on_readable)
    await over.wait()
    end_process_group()  # requests under way have nobody who waits for them


def error_frame(error: BaseException) -> Frame:
    """The answer that says what went wrong."""
    return Frame("error", {"error": pack_error(error)})


def _send(link: Link, call: int, answer: Frame) -> None:
    try:
        link.send(call, answer)
    except StepwellError as error:  # it cannot be put into a frame, or there is no memory for it
        link.send(call, error_frame(error))


def _built(link: Link, call: int, build: Callable[[], Any]) -> Any:
    """What was to be built; None once the parent knows why not."""
    try:
        built = build()
    except (Exception, SystemExit) as error:
        link.send(call, error_frame(error))
        return None
    link.send(call, Frame("ready", {"pid": os.getpid()}))
    return built


def main(arguments: list[str]) -> None:
    """Serve on the descriptors named by the arguments."""
    end, lifeline, page = (int(argument) for argument in arguments[:3])
    for descriptor in (end, lifeline, page):
        os.set_inheritable(descriptor, False)
    die_with(lifeline)
    faulthandler.enable()
    marks = Marks(page)
    os.close(page)
    start_heart(marks, float(arguments[3]))
    link = Link(socket.socket(fileno=end))
    frames = link.receive()
    if not frames:
        return
    ((call, frame),) = frames
    sys.path += [path for path in frame.header["path"] if path not in sys.path]
    settings = frame.header["settings"]
    if frame.op == "simulator":
        serve_simulator(link, marks, call, settings)
    elif frame.op == "generator":
        asyncio.run(serve_generator(link, marks, call, settings))
    else:
        link.send(call, error_frame(ConfigError(f"there is no worker of kind {frame.op!r}")))


if __name__ == "__main__":
    with contextlib.suppress(ConnectionError):  # the parent is gone
        main(sys.argv[1:])
