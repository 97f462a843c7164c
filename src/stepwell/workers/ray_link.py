"""Workers as actors of a Ray cluster: the same frames, through Ray's object store.

    WorkerProcess ─► RayLauncher.launch_worker ─► an actor in its bundle of the placement group
                         └─► RayLink.call ─► text and arrays ─► RayWorker.answer_call (ray_worker.py)

Arrays above Ray's limit (100 KB) lie in the object store. The actor and this process read them there.
Weights that several generators get (`SharedArrays`) are put once: every node fetches them once.

Invariants
* Every call ends: with its answer, or with the `WorkerError` of `end`.
* Ray restarts no actor and repeats no call: whether a lost call was executed is unknown.
* An actor that dies is noticed at once (a call that never returns fails), a node that is gone when Ray gives
  up on it, and silence after `hang_s`.
* After `end` the actor is killed. An actor whose run has died is ended by Ray.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError, RayError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from stepwell.core import WorkerError
from stepwell.core.arrays import AnyArray
from stepwell.core.frames import Frame, decode_text, encode_text
from stepwell.envs.codecs import unpack_error
from stepwell.workers.ray_worker import HEALTH, Message, RayWorker
from stepwell.workers.weight_bytes import SharedArrays

MAX_CALLS = 1000  # of one actor at once


@dataclass(frozen=True, slots=True)
class RayLauncher:
    """Starts the actors of one worker, one after the other, in one bundle of a placement group."""

    group: PlacementGroup
    bundle: int
    run: str  # unique in the cluster
    num_cpus: float
    num_gpus: float = 0.0
    variables: dict[str, str] = field(default_factory=dict)
    heartbeat_s: float = 5.0

    async def launch_worker(self, name: str, number: int, on_lost: Callable[[RayLink], None]) -> RayLink:
        """An actor that waits for its first frame, perhaps until the cluster has room for it."""
        try:
            actor = await asyncio.to_thread(self._create_actor, name, number)
        except (RayError, ValueError, ConnectionError) as error:
            raise WorkerError(f"worker {name} cannot be started by Ray: {error}") from error
        return RayLink(name, number, actor, heartbeat_s=self.heartbeat_s, on_lost=on_lost)

    def _create_actor(self, name: str, number: int) -> Any:
        strategy = PlacementGroupSchedulingStrategy(
            self.group, placement_group_bundle_index=self.bundle, placement_group_capture_child_tasks=False
        )
        make = make_actor_class().options(
            name=f"{self.run}/{name}/{number}",
            num_cpus=self.num_cpus,
            num_gpus=self.num_gpus,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=MAX_CALLS,
            scheduling_strategy=strategy,
        )
        return make.remote(name, self.run, self.variables)


def make_actor_class() -> Any:
    """`RayWorker` as an actor class. Its health has a thread of its own."""
    for method in (RayWorker.show_state, RayWorker.wait_for_end):
        ray.method(concurrency_group=HEALTH)(method)
    remote: Any = ray.remote
    return remote(concurrency_groups={HEALTH: 16})(RayWorker)


class RayLink:
    """A started actor and the calls to it. `on_lost` is called once, if it has ended or must be ended."""

    def __init__(
        self, name: str, number: int, actor: Any, *, heartbeat_s: float, on_lost: Callable[[RayLink], None]
    ) -> None:
        self.name, self.number = name, number
        self._actor, self._on_lost = actor, on_lost
        self._state: dict[str, Any] = {}
        self._seen_s = time.monotonic()
        self._is_machine_lost = False
        self._ending: asyncio.Task[WorkerError] | None = None
        self._ended: asyncio.Future[WorkerError] = asyncio.get_running_loop().create_future()
        self._tasks = [
            asyncio.create_task(self._await_death(), name=f"death of {name}"),
            asyncio.create_task(self._read_states(heartbeat_s), name=f"health of {name}"),
        ]

    # --- calls ----------------------------------------------------------------------------

    async def call(self, frame: Frame) -> Frame:
        """Send a call and wait for its answer. An answer that is an error is raised."""
        if self._ending is not None:
            raise await asyncio.shield(self._ending)
        text, arrays = encode_text(frame), await self._share_arrays(frame.arrays)
        answer = asyncio.ensure_future(_await_ref(self._actor.answer_call.remote(text, arrays)))
        try:
            await asyncio.wait((answer, self._ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not answer.done():
                answer.cancel()
        if self._ended.done() and not answer.done():
            raise WorkerError(*self._ended.result().args)
        return await self._read_answer(answer)

    async def _share_arrays(self, arrays: Sequence[AnyArray]) -> Any:
        if not isinstance(arrays, SharedArrays):
            return list(arrays)
        if arrays.handle is None:  # a task: the first caller puts them, the others wait for it
            arrays.handle = asyncio.ensure_future(asyncio.to_thread(ray.put, list(arrays)))
        return await asyncio.shield(arrays.handle)

    async def _read_answer(self, answer: asyncio.Future[Message]) -> Frame:
        try:
            text, arrays = answer.result()
        except RayError as error:
            self._note_failure(error)
            raise await asyncio.shield(self._start_ending(_describe_failure(error))) from error
        frame = decode_text(text, arrays)
        if frame.op == "error":
            raise unpack_error(frame.header.get("error"), WorkerError)
        return frame

    # --- watching -------------------------------------------------------------------------

    async def _await_death(self) -> None:
        try:
            await _await_ref(self._actor.wait_for_end.remote())
        except RayError as error:
            self._note_failure(error)
            self.give_up(_describe_failure(error))

    async def _read_states(self, heartbeat_s: float) -> None:
        while True:
            try:
                self._state = await _await_ref(self._actor.show_state.remote())
            except RayError as error:
                self._note_failure(error)
                self.give_up(_describe_failure(error))
                return
            self._seen_s = time.monotonic()
            await asyncio.sleep(heartbeat_s)

    def _note_failure(self, error: RayError) -> None:
        """An actor that cannot be reached, or whose node is gone, did not fail by itself."""
        lost = "node" in str(error).lower() if isinstance(error, ActorDiedError) else False
        self._is_machine_lost |= lost or isinstance(error, ActorUnavailableError)

    def find_trouble(self, hang_s: float) -> str | None:
        """Why it should be ended; None while all is well."""
        silent_s, stuck_s = time.monotonic() - self._seen_s, self._state.get("stuck_s", 0.0)
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
        """Whether its node was lost, so that the failure is not its own."""
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
        """Kill the actor and fail the pending calls. Its environments end with their process."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end_actor(why))
        return await asyncio.shield(self._ending)

    def _start_ending(self, why: str) -> asyncio.Task[WorkerError]:
        if self._ending is None:
            self._ending = asyncio.create_task(self._end_actor(why))
            self._on_lost(self)
        return self._ending

    async def _end_actor(self, why: str) -> WorkerError:
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        pid = self._state.get("pid")
        error = WorkerError(f"worker {self.name} (pid {pid} of a Ray node) {why or 'was ended'}")
        self._ended.set_result(error)
        try:
            await asyncio.to_thread(ray.kill, self._actor, no_restart=True)
        except (RayError, ValueError) as failed:  # Ray is gone, and the actor with it
            return WorkerError(f"{error}; Ray said: {failed}")
        return error


async def _await_ref(ref: Any) -> Any:
    return await asyncio.wrap_future(ref.future())


def _describe_failure(error: RayError) -> str:
    """What Ray says, without its hints about log files."""
    if not isinstance(error, RayActorError):
        return f"failed in Ray: {str(error).strip().splitlines()[0]}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    words = [line for line in lines if not line.startswith(("class_name", "actor_id", "pid", "name", "ip"))]
    return f"was lost: {' '.join(words)[:600]}"
