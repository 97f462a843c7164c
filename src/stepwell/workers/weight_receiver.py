"""How a generator takes new weights while it samples with the old ones.

    begin      the marks of a version ─► which parts it lacks: those that differ from what it has
    add_bucket their bytes, bucket by bucket, into memory beside the weights in use
    swap       adapters are merged, the engine takes what has changed between two batches, and all its
               weights are read back and compared

The sender need not know what the generator has: a restarted one lacks what its settings do not give it,
one that was killed in mid-transfer begins again, and one that has everything lacks nothing.

The engine must have `update_weights(version, changed)`, which keeps the weights that are not named, and
`live_weights()`, which lists those in use. One that has not is sent whole weights (`load_weights`).

Invariants
* The engine samples with the old weights until `swap`, and in `swap` it waits for the copy alone: marks are
  computed before and after it, beside its work.
* A part whose bytes are not those that were published never reaches the engine (`EncodingError`: they may be
  sent again). Weights in the engine that are not those published raise `WeightsError`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from stepwell.core import EncodingError, WeightsError
from stepwell.core.arrays import AnyArray
from stepwell.core.weight_parts import Adapter
from stepwell.engines.weights import compute_marks, digest_marks, drop_tied_heads, is_head
from stepwell.workers.weight_bytes import build_tensor
from stepwell.workers.weight_snapshots import merge_adapter


@dataclass(slots=True, eq=False)
class _Arrival:
    """A version on its way."""

    version: int
    marks: dict[str, str]
    adapters: dict[str, Adapter]
    lacking: set[str]
    raw: dict[str, AnyArray] = field(default_factory=dict)
    num_left: dict[str, int] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)


class WeightReceiver:
    """The weights of one engine. Its methods are called one after the other, in any thread."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._marks: dict[str, str] | None = None  # of the parts that its weights were made of
        self._expected: dict[str, str] = {}  # marks of its weights
        self._kept: dict[str, torch.Tensor] = {}  # adapters and what is beneath them
        self._arrival: _Arrival | None = None
        self._version: int | None = None  # that was taken last
        self._whole: str | None = None  # its fingerprint, if it came whole

    def begin(self, header: dict[str, Any]) -> list[str] | None:
        """The parts of a version that are lacking here; None: this engine takes whole weights only."""
        if not hasattr(self._engine, "update_weights"):
            return None
        adapters = {name: Adapter(*values) for name, values in header["adapters"].items()}
        marks: dict[str, str] = header["marks"]
        own = self._read_marks()
        self._check_names(marks, adapters)
        for name in adapters:
            if name not in self._kept and own.get(name) == marks[name]:
                self._kept[name] = self._engine.live_weights()[name].detach().cpu().clone()
        of_adapters = _list_adapter_parts(adapters) | adapters.keys()
        lacking = {
            name
            for name, mark in marks.items()
            if own.get(name) != mark or (name in of_adapters and name not in self._kept)
        }
        self._arrival = _Arrival(int(header["version"]), marks, adapters, lacking)
        return sorted(lacking)

    def add_bucket(self, header: dict[str, Any], arrays: Sequence[AnyArray]) -> None:
        """Take the bytes of some parts, and check every part that is complete."""
        arrival = self._find_arrival(header)
        for (name, kind, shape, start), piece in zip(header["pieces"], arrays, strict=True):
            if name not in arrival.lacking:
                raise EncodingError(f"the bytes of {name} were not asked for")
            if name not in arrival.raw:
                size = math.prod(shape) * getattr(torch, kind).itemsize
                arrival.raw[name], arrival.num_left[name] = np.empty(size, np.uint8), size
            raw = arrival.raw[name]
            if start + piece.size > raw.size or piece.size > arrival.num_left[name]:
                raise EncodingError(f"{start + piece.size} bytes of {name}, which has {raw.size}")
            raw[start : start + piece.size] = piece
            arrival.num_left[name] -= piece.size
            if not arrival.num_left[name]:
                arrival.tensors[name] = build_tensor(kind, shape, raw)
                self._check_part(arrival, name)

    def swap(self, header: dict[str, Any]) -> dict[str, Any]:
        """Put the version into the engine: its fingerprint, and how long the engine could not sample."""
        arrival = self._find_arrival(header)
        if missing := sorted(arrival.lacking - arrival.tensors.keys()):
            raise EncodingError(f"version {arrival.version} lacks {len(missing)} parts, such as {missing[0]}")
        changed = self._merge_parts(arrival)
        merged = {name: one for name, one in changed.items() if name in arrival.adapters}
        came = {name: arrival.marks[name] for name in changed.keys() - merged.keys()}
        expected = self._expected | came | compute_marks(merged)
        began, paused_s = time.perf_counter(), float(getattr(self._engine, "paused_s", 0.0))
        self._engine.update_weights(arrival.version, changed)
        paused_s = float(getattr(self._engine, "paused_s", paused_s)) - paused_s
        swap_s = time.perf_counter() - began
        self._marks = None  # until they are known to be right
        self._compare_weights(arrival.version, expected)
        of_adapters = _list_adapter_parts(arrival.adapters) | arrival.adapters.keys()
        self._kept |= {name: part for name, part in arrival.tensors.items() if name in of_adapters}
        self._marks, self._expected, self._arrival = arrival.marks, expected, None
        self._version, self._whole = arrival.version, None
        return {"fingerprint": digest_marks(arrival.marks), "paused_s": paused_s, "swap_s": swap_s}

    def _read_marks(self) -> dict[str, str]:
        """The marks of its parts; of its weights, as long as nothing else is known."""
        if self._marks is None:
            self._expected = compute_marks(drop_tied_heads(self._engine.live_weights()))
            self._marks, self._kept = dict(self._expected), {}
        return self._marks

    def load_whole(self, version: int, weights: Mapping[str, torch.Tensor]) -> str:
        """Put whole weights into the engine: their fingerprint. What is known of parts is no longer true."""
        self._engine.load_weights(version, weights)
        self._marks, self._kept, self._arrival = None, {}, None
        self._version, self._whole = version, self._engine.fingerprint()
        return self._whole

    def check_weights(self) -> None:
        """Read every weight of the engine: it must still be what was taken last."""
        if self._version is None:
            return
        if self._whole is None:
            self._compare_weights(self._version, self._expected)
        elif (found := self._engine.fingerprint()) != self._whole:
            raise WeightsError(
                f"version {self._version} was taken as {self._whole}, but the engine now has {found}"
            )

    def _check_names(self, marks: dict[str, str], adapters: dict[str, Adapter]) -> None:
        names, own = marks.keys() - _list_adapter_parts(adapters), self._expected.keys()
        missing = sorted(own - names)
        unexpected = sorted(name for name in names - own if not is_head(name))  # it may be tied here
        if missing or unexpected:
            raise WeightsError(
                f"these weights belong to another model: {len(missing)} names are missing {missing[:3]}, "
                f"{len(unexpected)} are unexpected {unexpected[:3]}"
            )

    def _find_arrival(self, header: dict[str, Any]) -> _Arrival:
        version = int(header["version"])
        if self._arrival is None or self._arrival.version != version:
            under_way = "none" if self._arrival is None else f"version {self._arrival.version}"
            raise EncodingError(f"bytes of version {version} have come, but {under_way} is under way")
        return self._arrival

    def _check_part(self, arrival: _Arrival, name: str) -> None:
        found = compute_marks({name: arrival.tensors[name]})[name]
        if found != arrival.marks[name]:
            self._arrival = None
            raise EncodingError(
                f"{name} of version {arrival.version} was damaged in transit: its checksum is "
                f"{found}, but {arrival.marks[name]} was published"
            )

    def _merge_parts(self, arrival: _Arrival) -> dict[str, torch.Tensor]:
        """The weights that change: parts that came, and weights whose adapters or bases came."""
        parts = self._kept | arrival.tensors
        of_adapters = _list_adapter_parts(arrival.adapters)
        changed = {name: part for name, part in arrival.tensors.items() if name not in of_adapters}
        for name, adapter in arrival.adapters.items():
            if {name, adapter.down, adapter.up} & arrival.tensors.keys():
                changed[name] = merge_adapter(parts[name], parts[adapter.down], parts[adapter.up], adapter)
        return changed

    def _compare_weights(self, version: int, expected: dict[str, str]) -> None:
        """Read every weight of the engine, beside its work: they must be those that were published."""
        found = compute_marks(drop_tied_heads(self._engine.live_weights()))
        wrong = [name for name in found if found[name] != expected.get(name)]
        if wrong:
            raise WeightsError(
                f"version {version}: {len(wrong)} weights in the engine are not those that were published, "
                f"such as {wrong[0]} ({found[wrong[0]]} instead of {expected.get(wrong[0])})"
            )


def _list_adapter_parts(adapters: dict[str, Adapter]) -> set[str]:
    return {part for one in adapters.values() for part in (one.down, one.up)}
