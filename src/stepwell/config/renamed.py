"""Settings with a new name. The old name works for one release, with a warning.

What earlier versions stored (`config.toml`, `run.json`, a study's `plan.json`) is read by either name.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

TABLES = {"groups": "workers"}
OLD_CONTEXT = "agent.memory"
_CONTEXTS = {"steps": "observation"}


def rename_tables(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with the new names of their tables; values under the new name win."""
    renamed: dict[str, Any] = {}
    for name, value in sorted(values.items(), key=lambda item: item[0] not in TABLES):
        name = TABLES.get(name, name)
        both = isinstance(value, Mapping) and isinstance(renamed.get(name), Mapping)
        renamed[name] = merge_tables(renamed[name], value) if both else value
    if isinstance(agent := renamed.get("agent"), Mapping):
        renamed["agent"] = rename_agent_keys(agent)
    return renamed


def rename_agent_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """The table `agent` with `context` in place of `memory`; a value under the new name wins."""
    renamed = dict(values)
    if "memory" in renamed:
        old = renamed.pop("memory")
        renamed.setdefault("context", rename_value(OLD_CONTEXT, old))
    return renamed


def rename_key(key: str) -> str:
    """A dotted key with its new name: `groups.mode` is `workers.mode`, `agent.memory` is `agent.context`."""
    if key == OLD_CONTEXT:
        return "agent.context"
    table, dot, rest = key.partition(".")
    return f"{TABLES.get(table, table)}{dot}{rest}"


def rename_value(key: str, value: Any) -> Any:
    """The value of a setting with an old key, as the new key takes it."""
    return _CONTEXTS.get(value, value) if key == OLD_CONTEXT and isinstance(value, str) else value


def list_names(values: Mapping[str, Any]) -> list[str]:
    """The tables and dotted keys of settings, as they are called there."""
    inner = [f"{name}.{key}" for name, table in values.items() if isinstance(table, Mapping) for key in table]
    return [*values, *inner]


def warn_of_old_names(names: Iterable[str], where: str = "") -> None:
    """One warning for each old name of a table or key."""
    for name in dict.fromkeys(names):
        if name == OLD_CONTEXT:
            text = "the setting agent.memory is now called agent.context"
            fix = 'write "observation" for "steps"; the old name goes with the next release'
            warnings.warn(f"{where}{text}: {fix}", FutureWarning, stacklevel=3)
        if name in TABLES:
            text = f"the settings [{name}] are now called [{TABLES[name]}]"
            fix = f"write {TABLES[name]}.KEY instead of {name}.KEY; the old name goes with the next release"
            warnings.warn(f"{where}{text}: {fix}", FutureWarning, stacklevel=3)


def rename_study_keys(values: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """A study's settings with `environments` instead of `worlds`: at the top, in variants and in `quick`."""
    renamed: dict[str, Any] = dict(_rename_worlds(values))
    if isinstance(variants := renamed.get("variants"), list):
        renamed["variants"] = [_rename_worlds(item) for item in variants]
    if "quick" in renamed:
        renamed["quick"] = _rename_worlds(renamed["quick"])
    if renamed != values:
        fix = "write [[environments]] and environments = [...]; the old name goes with the next release"
        text = f"{where}the worlds of a study are now called environments: {fix}"
        warnings.warn(text, FutureWarning, stacklevel=3)
    return renamed


def _rename_worlds(values: Any) -> Any:
    """Values that are not tables stay as they are; validation reports them."""
    if not isinstance(values, Mapping) or "environments" in values:
        return values
    return {"environments" if key == "worlds" else key: value for key, value in values.items()}


def merge_tables(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two tables as one, table by table; `above` wins."""
    result = dict(below)
    for key, value in above.items():
        inner = result.get(key)
        both = isinstance(inner, Mapping) and isinstance(value, Mapping)
        result[key] = merge_tables(inner, value) if both else value  # type: ignore[arg-type]
    return result
