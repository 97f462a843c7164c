"""JSON in ASCII by an encoder that is built once: `json.dumps` with options builds one for every value."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

quote: Callable[[str], str] = json.encoder.encode_basestring_ascii
"""A text as JSON. Anything else raises `TypeError`."""


def make_json_writer(
    default: Callable[[Any], Any] | None = None, *, sort_keys: bool = False, allow_nan: bool = True
) -> Callable[[Any], str]:
    """A function that gives a value as JSON. `default` converts what JSON does not know.

    There is no check for cycles: a value that contains itself ends in a RecursionError.
    """
    encoder = json.JSONEncoder(
        check_circular=False, allow_nan=allow_nan, sort_keys=sort_keys, separators=(",", ":"), default=default
    )
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # an interpreter without the C encoder
        return encoder.encode
    write = make(None, encoder.default, quote, None, ":", ",", sort_keys, False, allow_nan)
    return lambda value: "".join(write(value, 0))
