"""Engines of generator workers that are built whole, and get a fault before their first sample."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from tests.engines.faulty_positions import change_frequencies, shift_indices, shift_tables

from stepwell.core import Request, Sampled
from stepwell.engines import EmbeddedEngine
from stepwell.runs.build.worker_builder import build_engine


@contextmanager
def change_weights(engine: EmbeddedEngine) -> Iterator[None]:
    """Let its weights be one percent off."""
    with torch.no_grad():
        for parameter in engine.model.parameters():
            parameter.mul_(1.01)
    yield


def build_faulty(
    plant: Callable[[EmbeddedEngine], AbstractContextManager[None]], settings: Mapping[str, Any]
) -> EmbeddedEngine:
    """The engine of a run with these settings; the fault stays as long as its process."""
    engine: EmbeddedEngine = build_engine(settings)
    own, planted = engine.generate, ExitStack()

    async def generate(requests: Sequence[Request]) -> list[Sampled]:
        if not hasattr(engine, "fault"):
            engine.fault = planted  # type: ignore[attr-defined]
            planted.enter_context(plant(engine))
        return await own(requests)

    engine.generate = generate  # type: ignore[method-assign]
    return engine


def build_shifted(settings: Mapping[str, Any]) -> EmbeddedEngine:
    """It looks up other rows of correct tables."""
    return build_faulty(shift_indices, settings)


def build_with_wrong_tables(settings: Mapping[str, Any]) -> EmbeddedEngine:
    """It looks up the right rows of shifted tables."""
    return build_faulty(shift_tables, settings)


def build_with_wrong_frequencies(settings: Mapping[str, Any]) -> EmbeddedEngine:
    """Its model rotates a little faster."""
    return build_faulty(change_frequencies, settings)


def build_with_wrong_weights(settings: Mapping[str, Any]) -> EmbeddedEngine:
    """It samples with other weights than it has taken."""
    return build_faulty(change_weights, settings)


@contextmanager
def break_check(engine: EmbeddedEngine) -> Iterator[None]:
    """Let its check end in an error of another kind than its own."""

    def check_frequencies(frequencies: Mapping[str, torch.Tensor]) -> None:
        raise RuntimeError("the device is gone")

    engine.check_frequencies = check_frequencies  # type: ignore[method-assign]
    yield


def build_with_broken_check(settings: Mapping[str, Any]) -> EmbeddedEngine:
    """It samples rightly, but whether it does cannot be checked."""
    return build_faulty(break_check, settings)


def build_slowly_again(settings: Mapping[str, Any]) -> EmbeddedEngine:
    """Once the run's folder holds a file `slow`, it is not built before there is a file `go`."""
    folder = Path(settings["folder"])
    if (folder / "slow").exists():
        (folder / "building").touch()
        while not (folder / "go").exists():
            time.sleep(0.01)
    engine: EmbeddedEngine = build_engine(settings)
    return engine
