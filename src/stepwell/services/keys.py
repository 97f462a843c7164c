"""API keys: created here, shown once, stored as keyed hashes.

A key is `sw_NAME_SECRET` with 256 random bits in SECRET. A fast keyed hash (BLAKE2b with a random salt per
key) therefore protects it as well as a slow one would, at a microsecond per call. The name in the key says
which hash to compare with. `b2:SALT:DIGEST` is stored, in a file or in the configuration.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import time
from collections.abc import Mapping
from pathlib import Path

from stepwell.core.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9-]{1,64}")
_HASH = re.compile(r"b2:([0-9a-f]{32}):([0-9a-f]{64})")
_RELOAD_INTERVAL_S = 1.0


def create_key(name: str) -> str:
    """Create a key for `name`."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"key name {name!r} must be 1 to 64 letters, digits or '-'")
    return f"sw_{name}_{secrets.token_urlsafe(32)}"


def hash_key(key: str) -> str:
    """The hash of a key, which may be stored."""
    salt = secrets.token_bytes(16)
    return f"b2:{salt.hex()}:{_compute_digest(key, salt)}"


def verify_key(key: str, stored: str) -> bool:
    """Whether `stored` is the hash of `key`."""
    found = _HASH.fullmatch(stored)
    return found is not None and hmac.compare_digest(_compute_digest(key, bytes.fromhex(found[1])), found[2])


def _compute_digest(key: str, salt: bytes) -> str:
    return hashlib.blake2b(key.encode(errors="replace"), key=salt, digest_size=32).hexdigest()


def read_key(headers: Mapping[str, str]) -> str:
    """The key in `Authorization: Bearer KEY` or `x-api-key: KEY`; empty if there is none."""
    given = headers.get("authorization", "")
    return given[7:].strip() if given[:7].lower() == "bearer " else headers.get("x-api-key", "")


class KeyRing:
    """The keys that are accepted: those of the configuration and those of a file.

    The file is checked for changes at most once a second, so new keys need no restart. A key that was removed
    from the file is refused after the next check.
    """

    def __init__(self, keys: Mapping[str, str], file: str | Path | None = None) -> None:
        for name, stored in keys.items():
            _check_hash(name, stored)
        self._configured = dict(keys)
        self._file = Path(file).expanduser() if file is not None else None
        self._stamp: tuple[int, int] | None = None
        self._loaded_s = -_RELOAD_INTERVAL_S
        self._hashes = dict(keys)
        if self._file is not None:
            self._reload_file()
            if not self._hashes:
                raise ConfigError(
                    f"keys_file {self._file} holds no key; create one with "
                    f"`stepwell serve key NAME --keys {self._file}`"
                )

    @property
    def is_needed(self) -> bool:
        """Whether callers need a key."""
        return bool(self._hashes) or self._file is not None

    def find_name(self, key: str) -> str | None:
        """The name that a key belongs to; None for an unknown key."""
        name = key[3:].partition("_")[0] if key.startswith("sw_") else ""
        if self._file is not None and time.monotonic() - self._loaded_s > _RELOAD_INTERVAL_S:
            self._reload_file()
        stored = self._hashes.get(name)
        return name if stored is not None and verify_key(key, stored) else None

    def _reload_file(self) -> None:
        assert self._file is not None
        self._loaded_s = time.monotonic()
        try:
            status = self._file.stat()
        except FileNotFoundError:
            self._hashes, self._stamp = dict(self._configured), None
            return
        stamp = (status.st_mtime_ns, status.st_size)
        if stamp != self._stamp:
            self._hashes, self._stamp = {**self._configured, **read_keys(self._file)}, stamp


def read_keys(file: Path) -> dict[str, str]:
    """Hashes by name. A missing file holds none."""
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
        found = {str(name): str(entry["hash"]) for name, entry in value.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"keys_file {file} cannot be read ({error}); create it with `stepwell serve key`"
        ) from error
    for name, stored in found.items():
        _check_hash(name, stored)
    return found


def write_keys(file: Path, hashes: Mapping[str, str]) -> None:
    """Write the file atomically, readable by its owner only."""
    text = json.dumps({name: {"hash": stored} for name, stored in sorted(hashes.items())}, indent=1)
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(fresh, "w", encoding="utf-8") as handle:
            handle.write(text + "\n")
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(draft, file)
    except OSError as error:
        raise ConfigError(
            f"keys_file {file} cannot be written ({error.strerror or error}); choose another file"
        ) from error


def _check_hash(name: str, stored: str) -> None:
    if not _NAME.fullmatch(name) or not _HASH.fullmatch(stored):
        raise ConfigError(
            f"keys: the entry {name!r} is not a key hash; use what `stepwell serve key {name}` prints"
        )
