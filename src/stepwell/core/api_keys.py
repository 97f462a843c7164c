"""Keys of services, read from the environment: never from a URL, a file of settings or the command line."""

from __future__ import annotations

import os

from stepwell.core.errors import ConfigError


def read_key(variable: str) -> str:
    """The key in an environment variable, empty if there is none.

    A key that no header can carry is refused: a placeholder that was copied from a page, or a second line.
    """
    key = os.environ.get(variable, "").strip()
    wrong = [char for char in key if not "!" <= char <= "~"]
    if wrong:
        raise ConfigError(
            f"{variable} holds {wrong[0]!r}, which no key has; copy the whole key, without spaces or dots"
        )
    return key
