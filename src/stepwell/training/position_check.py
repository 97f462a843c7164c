"""The position check: engine and trainer read every token of a fresh step at the same positions.

A position is an integer, so this is no matter of rounding. The engine marks the positions at which it read
prompt and action (`Step.position_mark`). Here the same is computed from the packed batch that the policy is
about to run, for all steps at once: marks of tokens are summed along the paths of the prefix tree.

Ranks of a trainer pack for themselves, so each sends a digest of its own positions (`Ranks.take_batches`).

Not compared: steps without a mark (remote engines, demonstrations), and turns that a recipe has joined to one
flat sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from stepwell.core import Step
from stepwell.core.arrays import AnyArray
from stepwell.core.position_marks import UIntArray, fold_sums, mark_tokens
from stepwell.packing import Microbatch, Packed
from stepwell.packing.tree import PrefixTree
from stepwell.policies.vlm.inputs import ImagePlaces
from stepwell.training.batch import TrajectoryMinibatch
from stepwell.training.policy import Policy


def find_position_fault(policy: Policy, minibatches: Sequence[TrajectoryMinibatch]) -> str | None:
    """Describe the first step that engine and trainer read at different positions; None if there is none."""
    wrong, num_compared = [], 0
    for minibatch in minibatches:
        if isinstance(minibatch.packed, Packed) and any(_has_mark(step) for step in minibatch.steps):
            marks = compute_step_marks(policy, minibatch.packed)
            compared = [i for i, step in enumerate(minibatch.steps) if _has_mark(step) and step.num_units]
            num_compared += len(compared)
            differ = (i for i in compared if minibatch.steps[i].position_mark != marks[i])
            wrong += [(minibatch, i) for i in differ]
    if not wrong:
        return None
    minibatch, step = wrong[0]
    return (
        f"the engine read {len(wrong)} of {num_compared} steps at other positions than the trainer; "
        f"the first is {minibatch.describe_step(step)}"
    )


def _has_mark(step: Step) -> bool:
    return step.position_mark is not None


def compute_step_marks(policy: Policy, packed: Packed) -> AnyArray:
    """Mark the positions at which the policy reads each step, without its last token; 0: no action."""
    found = np.zeros(len(packed), dtype=np.int64)
    for microbatch in policy.prepare_batch(packed).microbatches:
        lengths = packed.table.action_lengths[microbatch.steps]
        sums = _sum_marks(microbatch, _read_positions(microbatch)).reshape(-1)
        last = np.cumsum(lengths)[lengths > 0] - 1  # the last action token of each step
        sites = microbatch.logit_sites[microbatch.logit_rows[last]]  # what predicts it: the last that is read
        found[microbatch.steps[lengths > 0]] = fold_sums(sums[sites])
    return found


def digest_positions(policy: Policy, minibatches: Sequence[TrajectoryMinibatch]) -> list[str]:
    """One text per minibatch that tells at which positions the policy reads all of its steps."""
    packs = [minibatch.packed for minibatch in minibatches]
    marks = [compute_step_marks(policy, packed) for packed in packs if isinstance(packed, Packed)]
    return [blake2b(found.tobytes(), digest_size=8).hexdigest() for found in marks]


def _read_positions(microbatch: Microbatch) -> AnyArray:
    """Read the positions of a prepared microbatch, [rows, columns] or [axes, rows, columns]."""
    places: ImagePlaces | None = microbatch.cache.get("image_places")
    return microbatch.positions if places is None or places.positions is None else places.positions


def _sum_marks(microbatch: Microbatch, positions: AnyArray) -> UIntArray:
    """Sum, for each token [rows, columns], the marks of what comes before it in its sequence, and its own."""
    if microbatch.tree is None:
        places = np.broadcast_to(np.arange(microbatch.input_ids.shape[1]), microbatch.input_ids.shape)
        return np.cumsum(mark_tokens(places, positions), axis=1, dtype=np.uint64)
    places = _count_ancestors(microbatch.tree)[None]
    return _sum_along_paths(microbatch.tree, mark_tokens(places, positions)[0])[None]


def _count_ancestors(tree: PrefixTree) -> AnyArray:
    """Count the tokens above each token, from the shape of the tree alone."""
    num_tokens = tree.num_tokens
    num_ended = np.cumsum(np.bincount(tree.subtree_end, minlength=num_tokens + 1)[:num_tokens])
    return np.arange(num_tokens) - num_ended


def _sum_along_paths(tree: PrefixTree, values: UIntArray) -> UIntArray:
    """Sum the values of each token and of those above it: a value counts until its subtree ends."""
    changes = np.zeros(tree.num_tokens + 1, dtype=np.uint64)
    changes[:-1] = values
    np.subtract.at(changes, tree.subtree_end, values)
    return np.cumsum(changes[:-1], dtype=np.uint64)
