"""Settings with a new name. The old name works for one release, with a warning.

What earlier versions stored (`config.toml`, `run.json`, a study's `plan.json`) is read by either name.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

TABLES = {"groups": "workers"}
KEYS = {
    "agent": {"memory": "context", "remind": "repeat_format", "tell_problems": "report_problems"},
    "engine.server": {"num_retries": "max_retries"},
    "train.guard": {"fall_errors": "fall_threshold", "rate_after": "learning_rate_factor"},
}
"""Per table, keys by their old names."""
VALUES = {"agent.memory": {"steps": "observation"}, "train.guard.on_fall": {"tell": "warn"}}
"""Per key, as it was called when it had them, values by their old names."""


def rename_tables(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with the new names of their tables and keys; values under the new name win."""
    renamed: dict[str, Any] = {}
    for name, value in sorted(values.items(), key=lambda item: item[0] not in TABLES):
        name = TABLES.get(name, name)
        both = isinstance(value, Mapping) and isinstance(renamed.get(name), Mapping)
        renamed[name] = merge_tables(renamed[name], value) if both else value
    return rename_inner_keys("", renamed)


def rename_inner_keys(table: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """A table and those inside it with the new names of their keys."""
    return {
        name: rename_inner_keys(_join_names(table, name), value) if isinstance(value, Mapping) else value
        for name, value in rename_keys(table, values).items()
    }


def rename_keys(table: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """One table with the new names of its keys and values; a value under the new name wins."""
    new_names = KEYS.get(table, {})
    renamed = {name: rename_value(f"{table}.{name}", value) for name, value in values.items()}
    for old in new_names.keys() & renamed.keys():
        value = renamed.pop(old)
        renamed.setdefault(new_names[old], value)
    return renamed


def rename_key(key: str) -> str:
    """A dotted key with its new name: `groups.mode` is `workers.mode`, `agent.memory` is `agent.context`."""
    table, dot, rest = key.partition(".")
    key = f"{TABLES.get(table, table)}{dot}{rest}"
    table, dot, last = key.rpartition(".")
    return f"{table}{dot}{KEYS.get(table, {}).get(last, last)}"


def rename_value(key: str, value: Any) -> Any:
    """The value of a setting by its old key, as the new key takes it."""
    return VALUES[key].get(value, value) if key in VALUES and isinstance(value, str) else value


def list_names(values: Mapping[str, Any], table: str = "") -> list[tuple[str, str]]:
    """The tables and dotted keys of settings, as they are called there, each with its text if it is one."""
    names = []
    for name, value in values.items():
        key = _join_names(table, name)
        names.append((key, value if isinstance(value, str) else ""))
        if isinstance(value, Mapping):
            names += list_names(value, key)
    return names


def warn_of_old_names(names: Iterable[tuple[str, str]], where: str = "") -> None:
    """One warning for each old name of a table, a key or a value."""
    texts = (text for name, value in names for text in _describe_old_names(name, value))
    for text in dict.fromkeys(texts):
        warnings.warn(f"{where}{text}; the old name goes with the next release", FutureWarning, stacklevel=3)


def _describe_old_names(name: str, value: str) -> Iterator[str]:
    new = rename_key(name)
    if name in TABLES:
        yield f"the settings [{name}] are now called [{new}]: write {new}.KEY instead of {name}.KEY"
    elif new.rpartition(".")[2] != name.rpartition(".")[2]:
        yield f"the setting {name} is now called {new}: write {new}"
    if value in VALUES.get(name, {}):
        yield f'the value "{value}" of {new} has a new name: write "{VALUES[name][value]}"'


def _join_names(table: str, name: str) -> str:
    return f"{table}.{name}" if table else name


def rename_study_keys(values: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """A study's settings with `environments` for `worlds`, and in variants `compare_with` for `beside`."""
    renamed: dict[str, Any] = dict(_rename_worlds(values))
    if isinstance(variants := renamed.get("variants"), list):
        renamed["variants"] = [_rename_worlds(item) for item in variants]
    if "quick" in renamed:
        renamed["quick"] = _rename_worlds(renamed["quick"])
    if renamed != values:
        fix = "write [[environments]] and environments = [...]; the old name goes with the next release"
        text = f"{where}the worlds of a study are now called environments: {fix}"
        warnings.warn(text, FutureWarning, stacklevel=3)
    return _rename_beside(renamed, where)


def _rename_worlds(values: Any) -> Any:
    """Values that are not tables stay as they are; validation reports them."""
    return _rename_name(values, "worlds", "environments")


def _rename_beside(values: dict[str, Any], where: str) -> dict[str, Any]:
    variants = values.get("variants")
    if not isinstance(variants, list):
        return values
    renamed = [_rename_name(item, "beside", "compare_with") for item in variants]
    if renamed != variants:
        text = f'{where}beside of a variant is now called compare_with: write compare_with = "NAME"'
        warnings.warn(f"{text}; the old name goes with the next release", FutureWarning, stacklevel=4)
    return {**values, "variants": renamed}


def _rename_name(values: Any, old: str, new: str) -> Any:
    if not isinstance(values, Mapping) or new in values:
        return values
    return {new if key == old else key: value for key, value in values.items()}


def merge_tables(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two tables as one, table by table; `above` wins."""
    result = dict(below)
    for key, value in above.items():
        inner = result.get(key)
        both = isinstance(inner, Mapping) and isinstance(value, Mapping)
        result[key] = merge_tables(inner, value) if both else value  # type: ignore[arg-type]
    return result
