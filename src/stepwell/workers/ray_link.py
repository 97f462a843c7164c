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
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError, RayError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from stepwell.core import WorkerError
from stepwell.core.arrays import AnyArray
from stepwell.core.frames import Frame, decode_text, encode_text
from stepwell.workers.ray_worker import HEALTH, RayWorker
from stepwell.workers.remote_link import LinkLostError, RemoteLink
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


class RayLink(RemoteLink):
    """A started actor and the calls to it."""

    place = "of a Ray node"

    def __init__(self, name: str, number: int, actor: Any, **more: Any) -> None:
        self._actor = actor
        super().__init__(name, number, **more)

    async def send_frame(self, frame: Frame) -> Frame:
        """The answer to a frame."""
        text, arrays = encode_text(frame), await _share_arrays(frame.arrays)
        return decode_text(*await _await_ref(self._actor.answer_call.remote(text, arrays)))

    async def fetch_state(self) -> dict[str, Any]:
        """The status that the actor reports."""
        found: dict[str, Any] = await _await_ref(self._actor.show_state.remote())
        return found

    async def await_death(self) -> None:
        """Wait for a call that never returns."""
        await _await_ref(self._actor.wait_for_end.remote())

    async def destroy(self) -> None:
        """Kill the actor. Its environments end with their process."""
        try:
            await asyncio.to_thread(ray.kill, self._actor, no_restart=True)
        except (RayError, ValueError) as error:  # Ray is gone, and the actor with it
            raise LinkLostError(str(error)) from error


async def _share_arrays(arrays: Sequence[AnyArray]) -> Any:
    if not isinstance(arrays, SharedArrays):
        return list(arrays)
    if arrays.handle is None:  # a task: the first caller puts them, the others wait for it
        arrays.handle = asyncio.ensure_future(asyncio.to_thread(ray.put, list(arrays)))
    return await asyncio.shield(arrays.handle)


async def _await_ref(ref: Any) -> Any:
    """The value of a reference. Who stops waiting leaves Ray's future alone: Ray sets it later."""
    loop = asyncio.get_running_loop()
    found = loop.create_future()

    def take_outcome(source: Future[Any]) -> None:
        if found.done():
            return
        if (error := source.exception()) is not None:
            found.set_exception(error)
        else:
            found.set_result(source.result())

    def pass_on(source: Future[Any]) -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(take_outcome, source)

    ref.future().add_done_callback(pass_on)
    try:
        return await found
    except RayError as error:
        is_gone = isinstance(error, ActorDiedError) and "node" in str(error).lower()
        is_lost = is_gone or isinstance(error, ActorUnavailableError)
        raise LinkLostError(_describe_failure(error), is_machine_lost=is_lost) from error


def _describe_failure(error: RayError) -> str:
    """What Ray says, without its hints about log files."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if not isinstance(error, RayActorError):
        return f"failed in Ray: {lines[0]}"
    words = [line for line in lines if not line.startswith(("class_name", "actor_id", "pid", "name", "ip"))]
    return f"was lost: {' '.join(words)[:600]}"
