"""Settings written as TOML: what `loading.py` reads back to an equal value.

TOML has no word for nothing, so a setting that is None is left out. That loses nothing as
long as None is the default of every setting that may hold it, which a test checks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from stepwell.core.errors import ConfigError

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def dump_config(config: BaseModel) -> str:
    """Every setting as TOML, defaults too: plain keys first, then one section per table."""
    return "\n".join(_table(_given(config), ())).strip() + "\n"


def toml_value(value: Any, where: str = "") -> str:
    """One value as it stands behind `key =`; tables inline."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(item, where) for item in value) + "]"
    if isinstance(value, BaseModel):
        value = _given(value)
    if isinstance(value, Mapping):
        pairs = (f"{_key(key)} = {toml_value(item, where)}" for key, item in value.items())
        return "{" + ", ".join(pairs) + "}"
    raise ConfigError(
        f"{where or 'value'}: {value!r} cannot be written as TOML; use numbers, text, lists and tables"
    )


def _given(config: BaseModel) -> dict[str, Any]:
    """The settings that are not None, tables as dictionaries. Free tables stay as they are."""
    pairs = ((name, getattr(config, name)) for name in type(config).model_fields)
    return {
        name: _given(value) if isinstance(value, BaseModel) else value
        for name, value in pairs
        if value is not None
    }


def _table(values: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    tables = {key: value for key, value in values.items() if isinstance(value, Mapping)}
    plain = {key: value for key, value in values.items() if key not in tables}
    if path and (plain or not tables):
        yield f"[{'.'.join(map(_key, path))}]"
    for key, value in plain.items():
        yield f"{_key(key)} = {toml_value(value, '.'.join((*path, key)))}"
    yield ""
    for key, value in tables.items():
        yield from _table(value, (*path, key))


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _text(value: str) -> str:
    # JSON's escapes are TOML's too; DEL is the one control character that JSON leaves bare
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
