"""Images by name: stored once, refused when unknown, bounded in memory when a blob store is behind."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from stepwell.core import ImageStore, InputError
from stepwell.core.arrays import AnyArray
from stepwell.core.ids import is_content_hash
from stepwell.core.images import hash_image

IMAGES = st.tuples(st.integers(1, 6), st.integers(1, 6)).flatmap(
    lambda size: arrays.arrays(np.uint8, (*size, 3), elements=st.integers(0, 2))
)


def _flat(value: int, size: int = 64) -> AnyArray:
    return np.full((size, size, 3), value, dtype=np.uint8)


@given(st.lists(IMAGES, min_size=1, max_size=6))
def test_images_are_equal_exactly_when_their_names_are(arrays_given: list[AnyArray]) -> None:
    images = ImageStore()
    names = [images.add(image) for image in arrays_given]
    distinct = {(image.shape, image.tobytes()) for image in arrays_given}
    assert len(set(names)) == len(images) == len(distinct)
    assert images.num_bytes == sum(len(data) for _, data in distinct)
    for name, image in zip(names, arrays_given, strict=True):
        assert is_content_hash(name) and np.array_equal(images.get(name), image)
        assert images.get_size(name) == image.shape[:2]


def test_what_was_added_cannot_change() -> None:
    images, image = ImageStore(), _flat(1)
    name = images.add(image)
    image[0, 0, 0] = 9
    assert images.get(name)[0, 0, 0] == 1
    with pytest.raises(ValueError, match="read-only"):
        images.get(name)[0, 0, 0] = 9


def test_an_unknown_image_and_a_wrong_array_say_what_to_do() -> None:
    with pytest.raises(InputError, match=r"call ImageStore\.add"):
        ImageStore().get("0" * 32)
    for wrong in (np.zeros((4, 4), np.uint8), np.zeros((4, 4, 4), np.uint8), np.zeros((4, 4, 3))):
        with pytest.raises(InputError, match="uint8 RGB"):
            ImageStore().add(wrong)
    with pytest.raises(InputError, match="max_mb"):
        ImageStore(max_mb=0)


def test_with_a_store_the_least_recently_used_go_and_come_back() -> None:
    store = {hash_image(_flat(value)): _flat(value) for value in range(6)}
    asked: list[str] = []

    def load(name: str) -> AnyArray:
        asked.append(name)
        return store[name]

    images = ImageStore(load, max_mb=3 * _flat(0).nbytes / 2**20)
    names = list(store)
    for name in names[:3]:
        images.get(name)
    images.get(names[0])  # used again, so that the second is now the oldest
    images.get(names[3])
    assert len(images) == 3 and names[1] not in images and names[0] in images
    asked.clear()
    assert np.array_equal(images.get(names[1]), store[names[1]])
    assert asked == [names[1]]


def test_without_a_store_nothing_is_dropped() -> None:
    images = ImageStore(max_mb=0.01)
    names = [images.add(_flat(value)) for value in range(20)]
    assert all(name in images for name in names)


def test_a_store_that_gives_another_image_is_not_believed() -> None:
    with pytest.raises(InputError, match="the store is damaged"):
        ImageStore(lambda name: _flat(7)).get(hash_image(_flat(8)))


def test_threads_may_add_and_get_at_once() -> None:
    images = ImageStore()
    names: list[set[str]] = [set() for _ in range(4)]

    def work(own: set[str]) -> None:
        for value in range(50):
            own.add(images.add(_flat(value, 8)))
            assert all(images.get(name).shape == (8, 8, 3) for name in own)

    threads = [threading.Thread(target=work, args=(own,)) for own in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names[0] == names[3] and len(images) == 50
    assert images.num_bytes == 50 * 8 * 8 * 3
