"""Collects what an update made of each trajectory, for the store of credit (`pool/credit_store.py`).

Everything is known inside the objectives of the update; one copy from the device per minibatch brings it
out. Nothing here changes the update.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepwell.core.arrays import AnyArray
from stepwell.pool.credit_records import CLIPPED, TRAINED, CreditRecord
from stepwell.training.objective import Objective


def collect_credit(update: int, objectives: Sequence[Objective]) -> list[CreditRecord]:
    """One record per trajectory of the update, whose objectives have made their passes."""
    return [record for objective in objectives for record in _collect_minibatch(update, objective)]


def _collect_minibatch(update: int, objective: Objective) -> Iterator[CreditRecord]:
    minibatch, timeline, credit = objective.minibatch, objective.timeline, objective.credit
    ratios, clipped = objective.measure_last_pass()
    rows = {
        "values": _to_floats(timeline.token_values),
        "end_values": _to_floats(timeline.end_values),
        "advantages": None if credit is None else _to_floats(credit.advantages),
        "ratios": _to_floats(ratios),
    }
    lengths = np.array([step.num_units for step in minibatch.steps], np.int32)
    flags = _build_flags(int(lengths.sum()), objective, clipped)
    versions = np.array(
        [(step.policy_version.first, step.policy_version.last) for step in minibatch.steps], np.int32
    )
    first_step = first_token = 0
    for trajectory in minibatch.trajectories:
        steps = slice(first_step, first_step + len(trajectory.steps))
        tokens = slice(first_token, first_token + int(lengths[steps].sum()))
        own: dict[str, Any] = {
            name: None if row is None else row[steps if name == "end_values" else tokens]
            for name, row in rows.items()
        }
        yield CreditRecord(trajectory.id, update, lengths[steps], versions[steps], flags[tokens], **own)
        first_step, first_token = steps.stop, tokens.stop


def _build_flags(num_tokens: int, objective: Objective, clipped: Tensor | None) -> AnyArray:
    mask = objective.loss_mask if objective.trains_policy else torch.zeros(num_tokens, dtype=torch.bool)
    flags = np.full(num_tokens, TRAINED, np.uint8) if mask is None else TRAINED * _to_bytes(mask)
    return flags if clipped is None else flags | (CLIPPED * _to_bytes(clipped))


def _to_bytes(mask: Tensor) -> AnyArray:
    return mask.to("cpu", torch.uint8).numpy()


def _to_floats(row: Tensor | None) -> AnyArray | None:
    return None if row is None else row.detach().to("cpu", torch.float32).numpy()
