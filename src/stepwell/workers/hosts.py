"""How a worker answers a frame: with the environments of a simulator, or the engine of a generator.

    simulator   reset, step              one after the other, in order of arrival; environments that wait:
                                         many calls at once, one turn at a time in each environment
    generator   generate, forget         many at once, as the engine batches them
                load_weights             in order, while pending requests continue if the engine can
                begin_weights, add_weights, swap_weights
                                         the same in pieces, beside the requests (`weight_receiver.py`)
                check_weights            weights and rotary tables are still what they should be

`progress` is called whenever work was done (in a simulator, after every environment), so that a slow batch
does not look like a hang.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from stepwell.core import JSON, ConfigError, InputError, Request, Sampled
from stepwell.core.frames import Frame
from stepwell.core.user_objects import find_object
from stepwell.envs.async_batch import AsyncEnvBatch
from stepwell.envs.batch import EnvBatch
from stepwell.envs.codecs import pack_samples, pack_turns, unpack_actions, unpack_requests, unpack_tasks
from stepwell.workers.weight_bytes import unpack_weights

Progress = Callable[[], None]
_WEIGHT_OPS = ("load_weights", "begin_weights", "add_weights", "swap_weights", "check_weights")


class Engine(Protocol):
    """The engine of a generator worker."""

    async def generate(self, requests: Sequence[Request]) -> list[Sampled]: ...

    def load_weights(self, version: int, source: Any) -> None: ...

    def fingerprint(self) -> str: ...

    def forget(self) -> None: ...


class SimulatorHost:
    """Hosts environment batches."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._with_state = bool(settings["with_state"])
        self._batches = [
            EnvBatch(settings["env"], settings["options"], settings["batch_size"])
            for _ in range(settings["num_batches"])
        ]
        self._async_batches = [AsyncEnvBatch(batch) for batch in self._batches]

    @property
    def waits(self) -> bool:
        """Whether its environments wait: then calls are to be awaited, many at once."""
        return self._batches[0].waits

    def answer_call(self, frame: Frame, progress: Progress) -> Frame:
        """The answer to a call. Errors are raised."""
        play = self._read_call(frame, self._batches)
        return Frame("turns", *pack_turns(play(with_state=self._with_state, progress=progress)))

    async def answer_waiting_call(self, frame: Frame, progress: Progress) -> Frame:
        """The answer to a call, of environments that wait. Errors are raised."""
        play = self._read_call(frame, self._async_batches)
        return Frame("turns", *pack_turns(await play(with_state=self._with_state, progress=progress)))

    def _read_call(self, frame: Frame, batches: Sequence[Any]) -> Callable[..., Any]:
        """The method of a batch that a frame calls, with its arguments."""
        header = frame.header
        number, places = header.get("batch"), header.get("places")
        if type(number) is not int or not isinstance(places, list):
            raise InputError(f"{frame.op} needs the number of a batch and a list of places in it")
        size = len(self._batches[0].envs)
        if frame.op == "reset":
            tasks, seeds = unpack_tasks(header), header["seeds"]
            check_places(number, places, len(tasks), len(self._batches), size)
            if len(seeds) != len(tasks):
                raise InputError(f"{len(seeds)} seeds for {len(tasks)} tasks")
            return partial(batches[number].reset, tasks, places, seeds)
        if frame.op == "step":
            actions = unpack_actions(header, frame.arrays)
            check_places(number, places, len(actions), len(self._batches), size)
            return partial(batches[number].step, places, actions)
        raise InputError(f"a simulator knows reset and step, not {frame.op!r}")

    def close(self) -> None:
        """Close every environment."""
        for batch in self._batches:
            batch.close()


class GeneratorHost:
    """Hosts an engine. Lives on an event loop."""

    def __init__(self, engine: Engine, progress: Progress) -> None:
        self._engine = engine
        self._progress = progress
        self._loading = asyncio.Lock()
        from stepwell.workers.weight_receiver import WeightReceiver  # imports torch: simulators do not

        self._receiver = WeightReceiver(engine)

    async def answer_call(self, frame: Frame) -> Frame:
        """The answer to a call. Errors are raised."""
        if frame.op == "generate":
            samples = await self._engine.generate(unpack_requests(frame.header, frame.arrays))
            return Frame("samples", *pack_samples(samples))
        if frame.op in _WEIGHT_OPS:
            async with self._loading:  # in order of arrival
                return await asyncio.to_thread(getattr(self, f"_{frame.op}"), frame)
        if frame.op == "forget":
            await asyncio.to_thread(self._engine.forget)
            return Frame("forgotten")
        raise InputError(f"a generator knows generate, forget and {', '.join(_WEIGHT_OPS)}, not {frame.op!r}")

    def _load_weights(self, frame: Frame) -> Frame:
        weights = unpack_weights(frame.header, frame.arrays)
        began, paused_s = time.perf_counter(), getattr(self._engine, "paused_s", None)
        found = self._receiver.load_whole(int(frame.header["version"]), weights)
        self._progress()
        loaded_s = time.perf_counter() - began
        after_s = getattr(self._engine, "paused_s", None)  # an engine that does not say may pause all along
        paused_s = loaded_s if paused_s is None or after_s is None else after_s - paused_s
        return Frame("loaded", {"fingerprint": found, "paused_s": paused_s})

    def _begin_weights(self, frame: Frame) -> Frame:
        return Frame("begun", {"lacking": self._receiver.begin(frame.header)})

    def _add_weights(self, frame: Frame) -> Frame:
        self._receiver.add_bucket(frame.header, frame.arrays)
        self._progress()
        return Frame("added")

    def _swap_weights(self, frame: Frame) -> Frame:
        found = self._receiver.swap(frame.header)
        self._progress()
        return Frame("loaded", found)

    def _check_weights(self, frame: Frame) -> Frame:
        self._receiver.check_weights()
        if hasattr(self._engine, "check_frequencies"):
            self._engine.check_frequencies(unpack_weights(frame.header, frame.arrays))
        self._progress()
        return Frame("checked")


def build_engine(factory: str, settings: dict[str, JSON]) -> Engine:
    """The engine that `module:function` builds from the settings."""
    make = find_object(factory, f"factory {factory!r}")
    if not callable(make):
        raise ConfigError(f"factory {factory!r} is a {type(make).__name__}, not a function")
    engine: Engine = make(settings)
    return engine


def check_places(number: int, places: Sequence[int], count: int, num_batches: int, batch_size: int) -> None:
    """Refuse wrong batches or places with a clear `InputError`."""
    if not 0 <= number < num_batches:
        raise InputError(f"environment batches are numbered 0..{num_batches - 1}, got {number}")
    if len(places) != count:
        raise InputError(f"{count} tasks or actions for {len(places)} places")
    if set(map(type, places)) - {int} or (places and not 0 <= min(places) <= max(places) < batch_size):
        raise InputError(f"places are numbered 0..{batch_size - 1}, got {list(places)}")
    if len(set(places)) != len(places):
        raise InputError(f"each place takes one turn at a time, got {list(places)}")
