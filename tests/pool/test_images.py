"""Images in the pool: stored once, found by whoever finds the trajectory, gone when nobody shows them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from stepwell.core import ImageSpan, ImageStore, InputError, Status, Step, Task, TokenState, Trajectory
from stepwell.pool import Pool, open_pool

SPAN = 3


def image(number: int) -> np.ndarray:
    return np.full((4, 5, 3), number, dtype=np.uint8)


def shown(*names: str) -> TokenState:
    """A prompt that shows images, one after the other."""
    spans = tuple(ImageSpan(name, 1 + i * SPAN, SPAN) for i, name in enumerate(names))
    return TokenState(np.arange(2 + SPAN * len(names), dtype=np.int32), spans)


def episode(store: ImageStore, *numbers: int, id: str = "", last: int | None = None) -> Trajectory:
    """One step per image, each with all images before it, and perhaps one after the last."""
    names = [store.add(image(number)) for number in numbers]
    steps = [
        Step.from_tokens(state.prompt_ids, [1], images=state.images, reward=0.0)
        for state in (shown(*names[: i + 1]) for i in range(len(names)))
    ]
    final = None if last is None else shown(*names, store.add(image(last)))
    status = Status.SUCCESS if last is None else Status.TRUNCATED
    extra = {"id": id} if id else {}
    return Trajectory(Task("toy", {}), steps, status, group=id, final_state=final, **extra)


def kept(pool: Pool) -> set[str]:
    return set(pool.blobs.keys())


def test_an_image_seen_by_many_steps_and_siblings_is_stored_once(tmp_path: Path) -> None:
    images = ImageStore()
    with open_pool(tmp_path / "pool.db") as pool:
        episodes = [episode(images, 1, 2, 3, last=4), episode(images, 1, 3)]
        assert pool.store_images(episodes, images) == 4
        pool.add(episodes)
        assert pool.store_images(episodes, images) == 0
        assert kept(pool) == {images.add(image(n)) for n in (1, 2, 3, 4)}


def test_pixels_of_a_stored_trajectory_come_back_in_another_process_memory(tmp_path: Path) -> None:
    images = ImageStore()
    with open_pool(tmp_path / "pool.db") as pool:
        given = episode(images, 7, 8, last=9)
        pool.store_images([given], images)
        pool.add([given])
    with open_pool(tmp_path / "pool.db") as pool:
        (found,) = pool.trajectories()
        assert found.steps == given.steps and found.final_state == given.final_state
        loaded = ImageStore(load=pool.load_image)
        assert found.final_state is not None
        names = [span.image for span in found.final_state.images]  # type: ignore[union-attr]
        assert [int(loaded.get(name)[0, 0, 0]) for name in names] == [7, 8, 9]


def test_an_image_that_nobody_stored_is_missed_with_the_reason(tmp_path: Path) -> None:
    with open_pool(tmp_path / "pool.db") as pool:
        loaded = ImageStore(load=pool.load_image)
        with pytest.raises(InputError, match="is not in this pool"):
            loaded.get(ImageStore().add(image(1)))


def test_an_exported_trajectory_takes_its_images_to_another_pool(tmp_path: Path) -> None:
    images = ImageStore()
    with open_pool(tmp_path / "one.db") as one, open_pool(tmp_path / "two.db") as two:
        given = [episode(images, 1, 2), episode(images, 2, 3)]
        one.store_images(given, images)
        one.add(given)
        one.export(tmp_path / "out.jsonl")
        two.import_(tmp_path / "out.jsonl")
        assert kept(two) == kept(one) and len(kept(one)) == 3
        name = given[1].steps[-1].state.images[-1].image  # type: ignore[union-attr]
        assert np.array_equal(two.load_image(name), image(3))


def test_collecting_keeps_images_that_another_trajectory_shows(tmp_path: Path) -> None:
    images = ImageStore()
    with open_pool(tmp_path / "pool.db") as pool:
        given = [episode(images, 1, 2, id="first"), episode(images, 2, 3, id="second")]
        pool.store_images(given, images)
        pool.add(given)
        pool.tag(["second"], "keep")
        old = time.time() - 7200
        for name in kept(pool):
            os.utime(pool.blobs.get_path(name), (old, old))
        assert pool.gc(max_bytes=0, unconsumed=True).num_trajectories == 1
        assert kept(pool) == {images.add(image(n)) for n in (2, 3)}
