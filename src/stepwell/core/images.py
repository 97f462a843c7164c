"""Images by content hash, in memory: the pixels behind the hashes in prompts and steps.

The first reader of an image adds it; from then on it is referred to by name. Whoever needs the pixels
asks for them. The name is the hash of shape and pixels, so equal images have one name.

Invariants
* Adding an equal image again changes nothing. `get` returns a read-only array.
* Without `load`, every added image stays in memory: it exists nowhere else. With `load` (the pool's
  blob store), at most `max_mb` are kept. The least recently used image goes first and is loaded
  again when it is needed. A loaded image must have the name it was asked for.
* All methods may be called from any thread. Loading does not block other threads.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from stepwell.core import arrays
from stepwell.core.arrays import AnyArray
from stepwell.core.errors import InputError
from stepwell.core.ids import hash_bytes

DEFAULT_MAX_MB = 512.0


def hash_image(image: AnyArray) -> str:
    """The content hash of an image: of its shape and pixels.

    >>> hash_image(np.zeros((2, 3, 3), np.uint8)) == hash_image(np.zeros((3, 2, 3), np.uint8))
    False
    """
    array = _check_image(image)
    header = f"swimg1 {array.shape[0]} {array.shape[1]}\n"  # as the pool's blob store keeps it
    return hash_bytes(header.encode() + array.tobytes())


class ImageStore:
    """A set of images, uint8 RGB [H, W, 3], by name.

    >>> images = ImageStore()
    >>> name = images.add(np.zeros((4, 4, 3), np.uint8))
    >>> images.get(name).shape, len(images)
    ((4, 4, 3), 1)
    """

    def __init__(
        self, load: Callable[[str], AnyArray] | None = None, *, max_mb: float = DEFAULT_MAX_MB
    ) -> None:
        if max_mb <= 0:
            raise InputError(f"max_mb is {max_mb}; it must be above 0")
        self._load = load
        self._max_bytes = int(max_mb * 2**20)
        self._images: OrderedDict[str, AnyArray] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Number of images in memory."""
        return len(self._images)

    def __contains__(self, name: object) -> bool:
        """Whether the image is in memory."""
        return name in self._images

    @property
    def num_bytes(self) -> int:
        """Bytes of the images in memory."""
        return self._num_bytes

    def add(self, image: AnyArray) -> str:
        """Add an image and return its name."""
        array = arrays.freeze(_check_image(image))
        name = hash_image(array)
        if name not in self._images:
            self._store(array)
        self._remember(name, array)
        return name

    def _store(self, array: AnyArray) -> None:
        """Store a new image where `load` will find it; called before its name is returned."""

    def get(self, name: str) -> AnyArray:
        """The pixels of an image."""
        with self._lock:
            found = self._images.get(name)
            if found is not None:
                self._images.move_to_end(name)
                return found
        if self._load is None:
            raise InputError(
                f"images: image {name} is unknown here; call ImageStore.add before its name is used, "
                "or give ImageStore a `load` that reads it from the blob store"
            )
        array = arrays.freeze(_check_image(self._load(name)))
        if hash_image(array) != name:
            raise InputError(f"images: image {name} was loaded with other pixels; the store is damaged")
        self._remember(name, array)
        return array

    def get_size(self, name: str) -> tuple[int, int]:
        """Height and width of an image."""
        height, width, _ = self.get(name).shape
        return int(height), int(width)

    def _remember(self, name: str, array: AnyArray) -> None:
        with self._lock:
            if name in self._images:
                self._images.move_to_end(name)
                return
            self._images[name] = array
            self._num_bytes += array.nbytes
            while self._load is not None and self._num_bytes > self._max_bytes and len(self._images) > 1:
                _, gone = self._images.popitem(last=False)
                self._num_bytes -= gone.nbytes


def _check_image(image: AnyArray) -> AnyArray:
    array = np.asarray(image)
    if array.ndim != 3 or array.shape[2] != 3 or array.dtype != np.uint8 or array.size == 0:
        raise InputError(f"an image must be uint8 RGB [H, W, 3], got {array.dtype} {array.shape}")
    return array
