"""Array steps stacked into microbatches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples

from stepwell.core import ArrayAction, ArrayState, InputError, Sampling, Step
from stepwell.packing import pack_arrays

NO_LOGPROBS = np.zeros(0, np.float32)


def made(number: int, length: int, *, words: str = "go", kind: str | None = None) -> Step:
    """A step whose arrays tell its number; `length` actions, 0 for none."""
    state = ArrayState({"proprio": np.full(2, number, np.float32)}, words)
    chunk = (number + 0.1 * np.arange(length * 2)).reshape(length, 2).astype(np.float32)
    draws, units = {}, chunk.size
    if kind == "bins":
        draws = {"bins": np.arange(length * 2, dtype=np.int32).reshape(length, 2)}
    elif kind == "chain":
        draws, units = {"chain": np.full((5, 3, 2), number, np.float32)}, 4
    action = ArrayAction(chunk, units if length else 0, draws if length else {})
    return Step(state, action, NO_LOGPROBS, sampling=Sampling(temperature=0.5 + number))


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=9), st.integers(1, 10))
def test_slots_of_all_microbatches_cover_the_flat_outputs_once_and_in_order(
    lengths: list[int], micro_batch: int
) -> None:
    packed = pack_arrays([made(i, n) for i, n in enumerate(lengths)], micro_batch=micro_batch)
    assert packed.action_lengths == [2 * n for n in lengths]
    assert max(m.num_states for m in packed.microbatches) <= micro_batch
    units = np.concatenate([m.logprob_indices for m in packed.microbatches])
    values = np.concatenate([m.value_indices for m in packed.microbatches])
    assert units.tolist() == list(range(sum(2 * n for n in lengths)))
    assert values.tolist() == list(range(sum(2 * n + 1 for n in lengths)))
    shown = np.concatenate([m.arrays["proprio"][:, 0] for m in packed.microbatches])
    assert shown.tolist() == list(range(len(lengths)))
    acting = [int(m.arrays["proprio"][i, 0]) for m in packed.microbatches for i in m.acting]
    assert acting == [i for i, n in enumerate(lengths) if n]


def test_short_chunks_are_filled_and_their_lengths_told() -> None:
    (batch,) = pack_arrays([made(0, 1, kind="bins"), made(1, 0), made(2, 3, kind="bins")]).microbatches
    assert batch.num_actions.tolist() == [1, 3] and batch.acting.tolist() == [0, 2]
    assert batch.chunks.shape == (2, 3, 2)
    assert batch.draws is not None and batch.draws[0].tolist() == [[0, 1]] * 3
    assert batch.temperatures.tolist() == [0.5, 2.5]
    assert batch.action_lengths.tolist() == [2, 0, 6]


def test_an_instruction_is_listed_once() -> None:
    steps = [made(i, 1, words=words) for i, words in enumerate(["a", "b", "a", "a"])]
    (batch,) = pack_arrays(steps).microbatches
    assert batch.instructions == ("a", "b") and batch.instruction_rows.tolist() == [0, 1, 0, 0]


def test_seeds_of_steps_do_not_depend_on_the_microbatch_and_differ() -> None:
    steps = [made(i, 1) for i in range(6)]
    whole = pack_arrays(steps, seed=3).microbatches[0].seeds
    parts = np.concatenate([m.seeds for m in pack_arrays(steps, seed=3, micro_batch=4).microbatches])
    assert np.array_equal(whole, parts) and len(set(whole.tolist())) == 6
    assert not np.intersect1d(whole, pack_arrays(steps, seed=4).microbatches[0].seeds).size


def test_what_does_not_belong_together_is_refused() -> None:
    with pytest.raises(InputError, match="empty"):
        pack_arrays([])
    with pytest.raises(InputError, match="micro_batch must be at least 1"):
        pack_arrays([made(0, 1)], micro_batch=0)
    with pytest.raises(InputError, match=r"steps\[0\] has a token state"):
        pack_arrays([Step.from_tokens([1], [2])])
    with pytest.raises(InputError, match=r"several kinds \(bins, chain\)"):
        pack_arrays([made(0, 1, kind="bins"), made(1, 1, kind="chain")])
    other = Step(ArrayState({"wrist": np.zeros(2, np.float32)}), made(0, 1).action, NO_LOGPROBS)
    with pytest.raises(InputError, match=r"states\[1\] shows wrist, the first one proprio"):
        pack_arrays([made(0, 1), other])
    odd = ArrayAction(np.zeros((2, 2), np.float32), 3)
    with pytest.raises(InputError, match=r"num_units is 3, but its draws make 4"):
        pack_arrays([Step(made(0, 1).state, odd, NO_LOGPROBS)])
