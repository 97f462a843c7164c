"""Pictures by content hash, in memory: what stands behind the hashes in prompts and steps.

Whoever sees a picture first adds it and speaks of it by name from then on; whoever needs the
pixels asks for them. The name is the hash of shape and pixels, so equal pictures have one name.

Invariants
* `add` of an equal picture changes nothing; what `get` gives is read-only.
* Without `load`, every added picture stays: it exists nowhere else. With `load` (the pool's
  blob store), at most `max_mb` are kept, the least recently used go first, and a picture that
  is not in memory is loaded again. What a store loads must have the name it was asked for.
* All methods may be called from any thread; loading does not hold up other threads.
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


def picture_name(image: AnyArray) -> str:
    """The content hash of a picture: of its shape and its pixels.

    >>> picture_name(np.zeros((2, 3, 3), np.uint8)) == picture_name(np.zeros((3, 2, 3), np.uint8))
    False
    """
    array = _checked(image)
    header = f"swimg1 {array.shape[0]} {array.shape[1]}\n"  # as the pool's blob store keeps it
    return hash_bytes(header.encode() + array.tobytes())


class Pictures:
    """A set of pictures, uint8 RGB [H, W, 3], by name.

    >>> pictures = Pictures()
    >>> name = pictures.add(np.zeros((4, 4, 3), np.uint8))
    >>> pictures.get(name).shape, len(pictures)
    ((4, 4, 3), 1)
    """

    def __init__(
        self, load: Callable[[str], AnyArray] | None = None, *, max_mb: float = DEFAULT_MAX_MB
    ) -> None:
        if max_mb <= 0:
            raise InputError(f"max_mb is {max_mb}; give the pictures some memory")
        self._load = load
        self._max_bytes = int(max_mb * 2**20)
        self._kept: OrderedDict[str, AnyArray] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Pictures in memory."""
        return len(self._kept)

    def __contains__(self, name: object) -> bool:
        """Whether the picture is in memory."""
        return name in self._kept

    @property
    def num_bytes(self) -> int:
        """Bytes of the pictures in memory."""
        return self._num_bytes

    def add(self, image: AnyArray) -> str:
        """Keep a picture; gives its name."""
        array = arrays.frozen(_checked(image))
        name = picture_name(array)
        if name not in self._kept:
            self._store(array)
        self._keep(name, array)
        return name

    def _store(self, array: AnyArray) -> None:
        """A picture is new here; what `load` reads from gets it first."""

    def get(self, name: str) -> AnyArray:
        """The pixels of a picture."""
        with self._lock:
            found = self._kept.get(name)
            if found is not None:
                self._kept.move_to_end(name)
                return found
        if self._load is None:
            raise InputError(
                f"images: picture {name} is unknown here; add it with Pictures.add before its name is used, "
                "or give Pictures a `load` that reads it from the blob store"
            )
        array = arrays.frozen(_checked(self._load(name)))
        if picture_name(array) != name:
            raise InputError(
                f"images: what was loaded as picture {name} is another picture; the store is damaged"
            )
        self._keep(name, array)
        return array

    def size(self, name: str) -> tuple[int, int]:
        """Height and width of a picture."""
        height, width, _ = self.get(name).shape
        return int(height), int(width)

    def _keep(self, name: str, array: AnyArray) -> None:
        with self._lock:
            if name in self._kept:
                self._kept.move_to_end(name)
                return
            self._kept[name] = array
            self._num_bytes += array.nbytes
            while self._load is not None and self._num_bytes > self._max_bytes and len(self._kept) > 1:
                _, gone = self._kept.popitem(last=False)
                self._num_bytes -= gone.nbytes


def _checked(image: AnyArray) -> AnyArray:
    array = np.asarray(image)
    if array.ndim != 3 or array.shape[2] != 3 or array.dtype != np.uint8 or array.size == 0:
        raise InputError(f"a picture must be uint8 RGB [H, W, 3], got {array.dtype} {array.shape}")
    return array
