"""Engines of every kind for tests, each with the same small model: embedded, and at servers."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from tests.engines.completions_server import serving
from tests.engines.model_server import ModelServer
from tests.engines.served_models import read_tiny

from stepwell.config.engine import EngineConfig
from stepwell.engines.embedded import EmbeddedEngine
from stepwell.engines.served.engine import ServedEngine

VLLM_URL = os.environ.get("STEPWELL_VLLM_PROCESSED", "")
VLLM_MODEL = os.environ.get("STEPWELL_VLLM_MODEL", "")
QUICK = {"max_retries": 1, "backoff_s": 0.01, "num_probes": 2, "probe_tokens": 8, "connect_timeout_s": 2.0}


def changed_weights(model: Any, size: float, seed: int = 0) -> dict[str, torch.Tensor]:
    """The model's weights with noise of this relative size on every one."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: value + size * value.std() * torch.randn(value.shape, generator=generator)
        if value.numel() > 1
        else value
        for name, value in model.state_dict().items()
    }


@contextmanager
def serve_models(kind: str, count: int = 1, **settings: Any) -> Iterator[list[ModelServer]]:
    """So many servers with the small model."""
    model, tokenizer = read_tiny()
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                serving(ModelServer(copy.deepcopy(model), tokenizer, "processed", kind=kind, **settings))
            )
            for _ in range(count)
        ]


def open_engine(kind: str, urls: list[str], folder: Path, **settings: Any) -> ServedEngine:
    """The engine of a run at these servers; no weights are published yet."""
    model, tokenizer = read_tiny()
    more = {name: settings.pop(name) for name in ("params", "context_length") if name in settings}
    config = EngineConfig.model_validate(
        {"backend": kind, "urls": urls, "server": {**QUICK, **settings.pop("server", {})}, **settings}
    )
    return ServedEngine(model, tokenizer, config, folder=folder / "weights", **more)


@contextmanager
def start_engine(kind: str, folder: Path) -> Iterator[EmbeddedEngine | ServedEngine]:
    """An engine of this kind with the small model, its weights published as version 0."""
    model, tokenizer = read_tiny()
    with ExitStack() as stack:
        if kind == "embedded":
            engine: Any = stack.enter_context(
                EmbeddedEngine(model, tokenizer, EngineConfig(on_new_weights="recompute", max_length=256))
            )
        elif kind == "real vllm":
            server = {"weights_folder": str(folder / "weights")}
            engine = stack.enter_context(open_engine("vllm", [VLLM_URL], folder, server=server))
        else:
            (server,) = stack.enter_context(serve_models(kind))
            engine = stack.enter_context(open_engine(kind, [server.url], folder))
        engine.load_weights(0, model.state_dict())
        yield engine
