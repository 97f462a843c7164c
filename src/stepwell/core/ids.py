"""Ids: random ones for events, content hashes for content.

Two tasks with the same content have the same `hash_content`, whatever seed made them.
Splits and deduplication depend on that. A random id says only that two events differ.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

from stepwell.core.errors import InputError
from stepwell.core.json_text import make_json_writer

HASH_BYTES = 16
_write_json = make_json_writer(sort_keys=True, allow_nan=False)


def make_id(prefix: str) -> str:
    """A fresh random id such as `traj-9f2c51d07a3be84c`."""
    return f"{prefix}-{secrets.token_hex(8)}"


def hash_bytes(data: bytes | bytearray | memoryview) -> str:
    """Content hash of raw bytes: 32 hex digits of BLAKE2b."""
    return hashlib.blake2b(data, digest_size=HASH_BYTES).hexdigest()


def hash_content(value: Any) -> str:
    """Content hash of a JSON value, independent of the order of its keys."""
    try:
        text = _write_json(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"content must be JSON values (texts, numbers but no NaN, truth values, lists, dicts): {error}"
        ) from error
    return hash_bytes(text.encode())


def is_content_hash(text: str) -> bool:
    """Whether `text` has the form of a content hash (lower-case hex of the right length)."""
    return len(text) == 2 * HASH_BYTES and all(c in "0123456789abcdef" for c in text)
