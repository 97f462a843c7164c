"""A started worker on another machine, or behind another system: what every such link has in common.

    call ─► send_frame ─► answer            a subclass carries the frame
    _read_states ─► fetch_state             every heartbeat_s
    _await_death ─► await_death             a subclass that hears of a death says so at once
    end ─► destroy

A subclass raises `LinkLostError` when the worker is gone, and `ConnectionError` when it was not reached: the
first ends the link, the second does so in a call (whether it was executed is unknown) and counts as silence
elsewhere.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from stepwell.core import WorkerError
from stepwell.core.frames import Frame
from stepwell.envs.codecs import unpack_error


class LinkLostError(Exception):
    """The worker is gone. `is_machine_lost`: so is its machine, and the failure is not the worker's own."""

    def __init__(self, why: str, *, is_machine_lost: bool = False) -> None:
        super().__init__(why)
        self.why, self.is_machine_lost = why, is_machine_lost


class RemoteLink:
    """A `WorkerLink`. `on_lost` is called once, if the worker has ended or must be ended."""

    place = "elsewhere"  # for messages

    def __init__(self, name: str, number: int, *, heartbeat_s: float, on_lost: Callable[[Any], None]) -> None:
        self.name, self.number = name, number
        self._on_lost = on_lost
        self._state: dict[str, Any] = {}
        self._seen_s = time.monotonic()
        self._is_machine_lost = False
        self._ending: asyncio.Task[WorkerError] | None = None
        self._ended: asyncio.Future[WorkerError] = asyncio.get_running_loop().create_future()
        self._tasks = [
            asyncio.create_task(self._await_death(), name=f"death of {name}"),
            asyncio.create_task(self._read_states(heartbeat_s), name=f"health of {name}"),
        ]

    # --- what a subclass does ---------------------------------------------------------------

    async def send_frame(self, frame: Frame) -> Frame:
        """The answer to a frame."""
        raise NotImplementedError

    async def fetch_state(self) -> dict[str, Any]:
        """`pid`, `memory_mb`, `stuck_s`, and `silent_s` if somebody else listens to its heartbeat."""
        raise NotImplementedError

    async def await_death(self) -> None:
        """Wait until it is known to be dead, and raise `LinkLostError`. By default nobody knows."""
        await asyncio.Event().wait()

    async def destroy(self) -> None:
        """End the worker. Raises `LinkLostError` or `ConnectionError` if that cannot be said to it."""
        raise NotImplementedError

    # --- calls ----------------------------------------------------------------------------

    async def call(self, frame: Frame) -> Frame:
        """Send a call and wait for its answer. An answer that is an error is raised."""
        if self._ending is not None:
            raise await asyncio.shield(self._ending)
        answer = asyncio.ensure_future(self.send_frame(frame))
        try:
            await asyncio.wait((answer, self._ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not answer.done():
                answer.cancel()
        if not answer.done():
            raise WorkerError(*self._ended.result().args)
        try:
            found = answer.result()
        except (LinkLostError, ConnectionError) as error:
            raise await asyncio.shield(self._start_ending(self._read_failure(error))) from error
        self._seen_s = time.monotonic()  # an answer is a sign of life
        if found.op == "error":
            raise unpack_error(found.header.get("error"), WorkerError)
        return found

    # --- watching -------------------------------------------------------------------------

    async def _await_death(self) -> None:
        try:
            await self.await_death()
        except LinkLostError as error:
            self.give_up(self._read_failure(error))

    async def _read_states(self, heartbeat_s: float) -> None:
        while True:
            try:
                self._state = await self.fetch_state()
                self._seen_s = time.monotonic()
            except LinkLostError as error:
                self.give_up(self._read_failure(error))
                return
            except ConnectionError:  # it may come back: `find_trouble` counts the silence
                self._is_machine_lost = time.monotonic() - self._seen_s > heartbeat_s
            await asyncio.sleep(heartbeat_s)

    def _read_failure(self, error: LinkLostError | ConnectionError) -> str:
        self._is_machine_lost |= isinstance(error, ConnectionError) or error.is_machine_lost
        return str(error)

    def find_trouble(self, hang_s: float) -> str | None:
        """Why it should be ended; None while all is well."""
        silent_s = time.monotonic() - self._seen_s + float(self._state.get("silent_s", 0.0))
        stuck_s = float(self._state.get("stuck_s", 0.0))
        if silent_s > hang_s:
            return f"gave no sign of life for {silent_s:.1f} s"
        if stuck_s > hang_s:
            return f"made no progress with a call for {stuck_s:.1f} s"
        return None

    def read_state(self) -> tuple[int | None, float, float]:
        """Its process id, its memory in MB, and the time since its last sign of life."""
        silent_s = time.monotonic() - self._seen_s if self._state else 0.0
        return self._state.get("pid"), float(self._state.get("memory_mb", 0.0)), silent_s

    def was_ended_by_others(self) -> bool:
        """Whether its machine was lost, so that the failure is not its own."""
        return self._is_machine_lost

    # --- ending ---------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether it has ended or is being ended."""
        return self._ending is not None

    def give_up(self, why: str) -> None:
        """Give it up for this reason and report it to `on_lost`."""
        self._start_ending(why)

    async def end(self, why: str = "", *, grace_s: float = 0.0) -> WorkerError:
        """End it and fail the pending calls; the error says how it ended."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end_worker(why))
        return await asyncio.shield(self._ending)

    def _start_ending(self, why: str) -> asyncio.Task[WorkerError]:
        if self._ending is None:
            self._ending = asyncio.create_task(self._end_worker(why))
            self._on_lost(self)
        return self._ending

    async def _end_worker(self, why: str) -> WorkerError:
        for task in self._tasks:
            task.cancel()
        pid = self._state.get("pid")
        error = WorkerError(f"worker {self.name} (pid {pid} {self.place}) {why or 'was ended'}")
        self._ended.set_result(error)
        try:
            await self.destroy()
        except (LinkLostError, ConnectionError) as failed:
            return WorkerError(f"{error}; it could not be told to end: {failed}")
        return error
