"""The process of a worker: builds its simulator or generator, then answers calls until its parent ends.

    python -m stepwell.workers.worker_main SOCKET PAGE HEARTBEAT_S     two open descriptors

    simulator   receive ─► answer ─► send           one thread, so that steps need no switch between threads
                receive ─► task per call ─► send    an event loop, if the environments wait
    generator   receive ─► task per call ─► send    an event loop, which the engine's batcher needs

Invariants
* The first frame says what to build. Every frame gets one answer: the result, or `error` with kind and text.
* The process never outlives its parent. It ends when the socket is closed, and the kernel kills its whole
  process group when the parent ends, even while code that never releases the interpreter runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import socket
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from stepwell.core import ConfigError, StepwellError
from stepwell.core.child_process import end_process_group, end_with_parent
from stepwell.core.frames import Frame
from stepwell.envs.codecs import pack_error
from stepwell.workers.heartbeat import CallTracker, HeartbeatPage, start_heartbeat
from stepwell.workers.hosts import GeneratorHost, SimulatorHost, build_engine
from stepwell.workers.shared_link import Link


def serve_simulator(link: Link, heartbeat: HeartbeatPage, call: int, settings: dict[str, Any]) -> None:
    """Build the environments and step them until the parent closes the link."""
    host = _build_or_report(link, call, partial(SimulatorHost, settings))
    if host is not None and host.waits:
        asyncio.run(_serve_waiting(link, heartbeat, host))
        return
    while host is not None:
        frames = link.receive()
        if frames is None:
            host.close()
            return
        for call, frame in frames:
            heartbeat.begin_call()
            try:
                answer = host.answer_call(frame, heartbeat.note_progress)
            except (Exception, SystemExit) as error:  # `sys.exit` must not end it
                answer = make_error_frame(error)
            heartbeat.end_call()
            _send_answer(link, call, answer)


async def serve_generator(link: Link, heartbeat: HeartbeatPage, call: int, settings: dict[str, Any]) -> None:
    """Build the engine and sample until the parent closes the link."""
    engine = _build_or_report(link, call, partial(build_engine, settings["factory"], settings["settings"]))
    if engine is None:
        return
    host = GeneratorHost(engine, heartbeat.note_progress)

    async def answer_call(call: int, frame: Frame) -> None:
        heartbeat.begin_call()
        try:
            answer = await host.answer_call(frame)
        except Exception as error:
            answer = make_error_frame(error)
        heartbeat.end_call()
        _send_answer(link, call, answer)

    await _serve_calls(link, answer_call)
    end_process_group()  # nobody waits for pending requests any more


async def _serve_waiting(link: Link, heartbeat: HeartbeatPage, host: SimulatorHost) -> None:
    """Step environments that wait until the parent closes the link."""
    watch = CallTracker(heartbeat)

    async def answer_call(call: int, frame: Frame) -> None:
        watch.begin_call(call)
        try:
            answer = await host.answer_waiting_call(frame, partial(watch.note_progress, call))
        except Exception as error:
            answer = make_error_frame(error)
        watch.end_call(call)
        _send_answer(link, call, answer)

    await _serve_calls(link, answer_call)
    host.close()


async def _serve_calls(link: Link, answer_call: Callable[[int, Frame], Coroutine[Any, Any, None]]) -> None:
    """Answer calls, each in a task of its own, until the parent closes the link."""
    tasks, over = set[asyncio.Task[None]](), asyncio.Event()

    def on_readable() -> None:
        frames = link.receive()
        if frames is None:
            over.set()
            return
        for call, frame in frames:
            task = asyncio.create_task(answer_call(call, frame))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    asyncio.get_running_loop().add_reader(link.socket, on_readable)
    await over.wait()


def make_error_frame(error: BaseException) -> Frame:
    """The answer that describes an error."""
    return Frame("error", {"error": pack_error(error)})


def _send_answer(link: Link, call: int, answer: Frame) -> None:
    try:
        link.send(call, answer)
    except StepwellError as error:  # it does not fit into a frame, or there is no memory
        link.send(call, make_error_frame(error))


def _build_or_report(link: Link, call: int, build: Callable[[], Any]) -> Any:
    """The result of `build`; or None, after the reason was reported to the parent."""
    try:
        built = build()
    except (Exception, SystemExit) as error:
        link.send(call, make_error_frame(error))
        return None
    link.send(call, Frame("ready", {"pid": os.getpid()}))
    return built


def main(arguments: list[str]) -> None:
    """Serve on the descriptors named by the arguments."""
    end, page = (int(argument) for argument in arguments[:2])
    for descriptor in (end, page):
        os.set_inheritable(descriptor, False)
    end_with_parent()
    faulthandler.enable()
    heartbeat = HeartbeatPage(page)
    os.close(page)
    start_heartbeat(heartbeat, float(arguments[2]))
    link = Link(socket.socket(fileno=end))
    frames = link.receive()
    if not frames:
        return
    ((call, frame),) = frames
    sys.path += [path for path in frame.header["path"] if path not in sys.path]
    settings = frame.header["settings"]
    if frame.op == "simulator":
        serve_simulator(link, heartbeat, call, settings)
    elif frame.op == "generator":
        asyncio.run(serve_generator(link, heartbeat, call, settings))
    else:
        link.send(call, make_error_frame(ConfigError(f"unknown kind of worker {frame.op!r}")))


if __name__ == "__main__":
    with contextlib.suppress(ConnectionError):  # the parent has ended
        main(sys.argv[1:])
