"""Sharded checkpoints: every rank writes its part, and any number of ranks reads them (DCP).

    shards/__0_0.distcp …   parts of the ranks
           .metadata        which part of which tensor is where

Tensors are named `NAME:KEY`: NAME is a trained weight, KEY `original` (the weight, in float32 where it is
rounded for the model) or a state of the optimizer (`exp_avg`, `exp_avg_sq`, `step`, `momentum_buffer`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from stepwell.core import WeightsError

FOLDER = "shards"


def save_shards(path: Path, state: Mapping[str, Tensor]) -> None:
    """Write this rank's part of `state`, in which parts of a whole are DTensors."""
    with _ignore_warnings():
        save(dict(state), checkpoint_id=str(path), no_dist=not dist.is_initialized())


def load_shards(
    path: Path, weights: Mapping[str, Tensor], view_sharded: Callable[[str, Tensor], Tensor] | None = None
) -> dict[str, Tensor]:
    """This rank's part of what was saved, for weights of these local shapes."""
    reader = FileSystemReader(str(path))
    known: dict[str, Any] = reader.read_metadata().state_dict_metadata
    unknown = sorted({label.rpartition(":")[0] for label in known} - weights.keys())
    missing = sorted(weights.keys() - {label.rpartition(":")[0] for label in known})
    if unknown or missing:
        raise WeightsError(
            f"{path} was saved from another policy: {[*unknown, *missing][0]} is only in one of the two; "
            "policy and critic must not change on resume"
        )
    state: dict[str, Tensor] = {}
    for label, described in known.items():
        own = weights[label.rpartition(":")[0]]
        dtype = described.properties.dtype
        is_scalar = len(described.size) == 0 and own.ndim > 0
        state[label] = torch.zeros((), dtype=dtype) if is_scalar else torch.zeros_like(own, dtype=dtype)
    seen = {label: x if view_sharded is None else view_sharded(label, x) for label, x in state.items()}
    with _ignore_warnings():
        load(seen, storage_reader=reader, no_dist=not dist.is_initialized())
    return state


@contextmanager
def _ignore_warnings() -> Iterator[None]:
    """Without torch's remarks on processes that save alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
