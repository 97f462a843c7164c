"""The blob store keeps bytes once, checks them, and survives killed writers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from stepwell.core import EncodingError, InputError, hash_bytes
from stepwell.pool import BlobStore

images = hnp.arrays(np.uint8, st.tuples(st.integers(1, 5), st.integers(1, 5), st.just(3)))
shared_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@shared_folder
@given(st.binary(max_size=100))
def test_bytes_come_back_under_the_hash_of_their_content(tmp_path: Path, data: bytes) -> None:
    store = BlobStore(tmp_path)
    key = store.put(data)
    assert key == hash_bytes(data) == store.put(data)
    assert store.get(key) == data


@shared_folder
@given(images)
def test_an_image_comes_back_pixel_for_pixel(tmp_path: Path, image: np.ndarray) -> None:
    store = BlobStore(tmp_path)
    back = store.get_image(store.put_image(image))
    assert back.shape == image.shape and (back == image).all()


def test_the_same_image_is_kept_once_and_shape_counts(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    image = np.arange(36, dtype=np.uint8).reshape(4, 3, 3)
    keys = {
        store.put_image(image),
        store.put_image(image.copy()),
        store.put_image(image.reshape(3, 4, 3)),
    }
    assert len(keys) == 2 == len(list(store.keys()))


@pytest.mark.parametrize(
    "image", [np.zeros((2, 2), np.uint8), np.zeros((2, 2, 3)), np.zeros((0, 2, 3), np.uint8)]
)
def test_what_is_not_an_rgb_image_is_refused(tmp_path: Path, image: np.ndarray) -> None:
    with pytest.raises(InputError, match="uint8 RGB"):
        BlobStore(tmp_path).put_image(image)


@pytest.mark.parametrize("key", ["../../etc/passwd", "abc", "G" * 32, ""])
def test_a_key_that_is_no_hash_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(InputError, match="not a content hash"):
        BlobStore(tmp_path).get(key)


def test_a_missing_blob_is_a_key_error_and_a_damaged_one_says_so(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    with pytest.raises(KeyError, match="is not in"):
        store.get(hash_bytes(b"never stored"))
    key = store.put(b"hello" * 100)
    for damage in (b"", b"rubbish", store.get_path(key).read_bytes()[:-3]):
        store.get_path(key).write_bytes(damage)
        with pytest.raises(EncodingError, match="is damaged"):
            store.get(key)


@pytest.mark.parametrize("flush", [True, False])
def test_the_next_put_of_the_same_content_repairs_a_damaged_blob(tmp_path: Path, flush: bool) -> None:
    store = BlobStore(tmp_path, flush=flush)
    key = store.put(b"hello" * 100)
    for damage in (b"", b"rubbish", store.get_path(key).read_bytes()[:-3], zlib.compress(b"another content")):
        store.get_path(key).write_bytes(damage)
        assert not store.refresh(key)
        assert store.put(b"hello" * 100) == key
        assert store.get(key) == b"hello" * 100
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [key]


def test_a_store_that_is_only_read_makes_no_folder(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "images")
    assert list(store.keys()) == [] and store.count_bytes() == 0 and hash_bytes(b"x") not in store
    assert not (tmp_path / "images").exists()


def test_bytes_that_are_no_image_are_not_read_as_one(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    for data in (b"hello", b"swimg1 2 2\nabc", b"other 1 1\nabc"):
        with pytest.raises(EncodingError, match="is not an image"):
            store.get_image(store.put(data))


def test_removed_blobs_are_gone_and_sizes_add_up(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    keys = [store.put(os.urandom(1000)) for _ in range(3)]
    assert 3000 <= store.count_bytes() <= 3100
    store.remove(keys[0])
    store.remove(keys[0])
    assert set(store.keys()) == set(keys[1:]) and keys[0] not in store


WRITER = """
import os, sys
from stepwell.pool import BlobStore
store = BlobStore(sys.argv[1])
print("ready", flush=True)
while True:
    key = store.put(os.urandom(200_000))
    print(key, flush=True)
"""


@pytest.mark.slow
def test_a_killed_writer_leaves_every_acknowledged_blob_whole(tmp_path: Path) -> None:
    for _ in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
        time.sleep(0.05)
        writer.send_signal(signal.SIGKILL)
        acknowledged = [line.strip() for line in writer.stdout if line.endswith("\n")]
        writer.wait()
        writer.stdout.close()
        store = BlobStore(tmp_path)
        for key in acknowledged:
            assert hash_bytes(store.get(key)) == key
    for key in list(store.keys()):
        assert hash_bytes(store.get(key)) == key
    store.sweep(older_than_s=-1)
    assert not list(tmp_path.glob("??/*.tmp"))
