"""Settings as TOML, which `loading.py` reads back to equal values.

TOML has no null, so a setting that is None is left out. This loses nothing because None is the default of
every setting that may be None, which a test checks.

No library: overrides need values on one line, with tables inline, and those writers put every list on
several lines.
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
    return "\n".join(_write_table(_collect_values(config), ())).strip() + "\n"


def flatten_tables(
    table: Mapping[str, Any], above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value of nested tables with its path."""
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from flatten_tables(value, (*above, key))
        else:
            yield (*above, key), value


def format_toml(value: Any, where: str = "") -> str:
    """One value as TOML on one line; tables are inline."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _format_text(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(format_toml(item, where) for item in value) + "]"
    if isinstance(value, BaseModel):
        value = _collect_values(value)
    if isinstance(value, Mapping):
        pairs = (f"{_format_key(key)} = {format_toml(item, where)}" for key, item in value.items())
        return "{" + ", ".join(pairs) + "}"
    raise ConfigError(
        f"{where or 'value'}: {value!r} cannot be written as TOML; use numbers, text, lists and tables"
    )


def _collect_values(config: BaseModel) -> dict[str, Any]:
    """The settings that are not None, with tables as dictionaries."""
    pairs = ((name, getattr(config, name)) for name in type(config).model_fields)
    return {
        name: _collect_values(value) if isinstance(value, BaseModel) else value
        for name, value in pairs
        if value is not None
    }


def _write_table(values: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    tables = {key: value for key, value in values.items() if isinstance(value, Mapping)}
    plain = {key: value for key, value in values.items() if key not in tables}
    if path and (plain or not tables):
        yield f"[{'.'.join(map(_format_key, path))}]"
    for key, value in plain.items():
        yield f"{_format_key(key)} = {format_toml(value, '.'.join((*path, key)))}"
    yield ""
    for key, value in tables.items():
        yield from _write_table(value, (*path, key))


def _format_key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _format_text(key)


def _format_text(value: str) -> str:
    # JSON's escapes are TOML's too; DEL is the one control character that JSON leaves bare
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
