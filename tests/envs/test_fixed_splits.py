"""Tasks that their environment puts on a side stay there, whatever share is held out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core import Split, Task
from stepwell.envs.fixed_splits import assign_split


@given(st.text(max_size=20), st.sampled_from(list(Split)), st.floats(1 / 64, 1 / 2))
def test_a_task_stands_on_its_side_for_every_usual_share(word: str, split: Split, share: float) -> None:
    task = assign_split(Task("echo", {"word": word}, seed=3), split)
    assert task.split(share) == split
    assert task.content["word"] == word and task.seed == 3
    assert assign_split(Task("echo", {"word": word}), split).id == task.id


@pytest.mark.parametrize("split", list(Split))
def test_a_task_that_is_put_twice_stays_the_same(split: Split) -> None:
    once = assign_split(Task("echo", {"word": "well"}), split)
    assert assign_split(once, split) == once
