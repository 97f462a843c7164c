"""From a file, a preset and `key=value` overrides to a checked configuration.

    load_config("frozenlake", ["train.group_size=8", "env.options.size=5"])

    source ──► tables ──► overrides on top ──► RunConfig, or one error with every problem in it

Values of overrides are TOML (`3e-4`, `true`, `[1, 2]`, `"text"`). What is not TOML is text (`grpo`,
`cuda:0`), and `none` sets a setting to None if it may be None. An error names the dotted path, what is
allowed, the name that was probably meant, and the place: the line of the file or the override.

The tables `recipe.credit` and `recipe.loss` of a source hold arguments of that source's recipe. An override
of `recipe.name` that chooses another recipe leaves them behind; those given as overrides count.

Only what the models know is checked here. Whether an environment has an option, or a recipe exists, is
checked when they are built, with messages of the same form.
"""

from __future__ import annotations

import copy
import datetime
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from stepwell.config.presets import list_preset_names, read_preset_text
from stepwell.config.renamed import (
    list_names,
    rename_inner_keys,
    rename_key,
    rename_tables,
    rename_value,
    warn_of_old_names,
)
from stepwell.config.run import RunConfig
from stepwell.config.schema import Setting, describe_problem, find_field
from stepwell.config.writing import dump_config
from stepwell.core.errors import ConfigError
from stepwell.core.names import suggest_file, suggest_name
from stepwell.core.user_objects import is_import_path

__all__ = ["describe_toml_error", "dump_config", "load_config", "parse_options"]

_HEADER = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(#.*)?$")
_ENTRY = re.compile(r"\s*([A-Za-z0-9_\"'.\s-]+?)\s*=")
_RUN_FILE = "config.toml"
_RECIPE = "recipe.name="


@dataclass(slots=True)
class _Source:
    """Where settings come from: a name for messages, the values, and the place of each key."""

    name: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    names: list[tuple[str, str]] = field(default_factory=list)  # tables and keys, as they are called there


def load_config(path: Path | str | RunConfig | None, overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration in `path` with `overrides` on top; `ConfigError` lists all problems.

    `path` is a TOML file, a run folder, a preset (`frozenlake` or `preset:frozenlake`), settings that were
    loaded before, or None for the defaults alone.
    """
    if isinstance(path, RunConfig):
        source = _Source(values=path.model_dump())
    else:
        source = _Source() if path is None else _read_source(path)
    problems: list[str] = []
    names = list(source.names)
    _leave_recipe_tables(source.values, overrides)
    for text in overrides:
        try:
            key, value = _parse_override(text)
            names += _list_override_names(text)
            _set_value(source.values, key, value)
            source.places[".".join(key)] = "override"
        except ConfigError as error:
            problems.append(str(error))
    try:
        config = RunConfig.model_validate(_fill_defaults(RunConfig(), source.values))
    except ValidationError as error:
        problems += _explain_problems(error, source.places)
    if problems:
        raise ConfigError(_list_problems(source.name, problems))
    warn_of_old_names(names, f"{source.name}: " if source.name else "")
    return config


def _list_override_names(text: str) -> list[tuple[str, str]]:
    key, raw = _split_override(text)
    value = _parse_value(raw)
    for part in reversed(key):
        value = {part: value}
    return list_names(value)


def _leave_recipe_tables(values: dict[str, Any], overrides: Sequence[str]) -> None:
    """Drop the arguments of the source's recipe where the overrides choose another one."""
    chosen = [text.partition("=")[2].strip() for text in overrides if text.startswith(_RECIPE)]
    recipe = values.get("recipe")
    if chosen and isinstance(recipe, dict) and _parse_value(chosen[-1]) != recipe.get("name"):
        for table in ("credit", "loss"):
            recipe.pop(table, None)


def parse_options(texts: Sequence[str]) -> dict[str, Any]:
    """`size=5 is_slippery=true` as a dictionary: options of an environment, one by one."""
    options: dict[str, Any] = {}
    for text in texts:
        key, raw = _split_override(text)
        _set_value(options, key, _parse_value(raw))
    return options


def _read_source(path: Path | str) -> _Source:
    text = str(path)
    file = Path(path).expanduser()
    if not text.strip():
        raise ConfigError("the configuration's name is empty; give a TOML file or a preset")
    if file.is_dir():
        if not (file / _RUN_FILE).is_file():
            raise ConfigError(f"{text} is a folder without {_RUN_FILE}; give a run folder or a TOML file")
        file = file / _RUN_FILE
    if file.is_file() and not text.startswith("preset:"):
        return _parse_toml(str(file), _read_text(file))
    name = text.removeprefix("preset:")
    if name not in list_preset_names():
        raise ConfigError(_describe_missing(text, name))
    return _parse_toml(f"preset {name}", read_preset_text(name))


def _read_text(file: Path) -> str:
    if file.suffix == ".py":
        raise ConfigError(
            f"{file} is Python, and settings are TOML. For an environment of your own: --env {file}:CLASS; "
            f"for an agent: demo --agent {file}:FUNCTION"
        )
    try:
        return file.read_text(encoding="utf-8-sig")  # editors on Windows write a mark before the text
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text ({error}); save it as UTF-8") from None


def _describe_missing(text: str, name: str) -> str:
    if is_import_path(name):
        return f"config {text!r} names an environment; write a preset and it: own env.name={name}"
    presets, stem = list_preset_names(), name.removesuffix(".toml")
    guess = suggest_name(stem if stem in presets else name, presets) or suggest_file(text) or "."
    return (
        f"config {text!r} is neither a file nor a preset{guess} Presets: {', '.join(presets)}; "
        "anything else must be the path of a TOML file"
    )


def _parse_toml(name: str, text: str) -> _Source:
    return copy.deepcopy(_read_toml(name, text))


@lru_cache(maxsize=64)
def _read_toml(name: str, text: str) -> _Source:
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(describe_toml_error(name, text, error)) from None
    places = {rename_key(key): place for key, place in _find_lines(text)}
    return _Source(name, rename_tables(values), places, list_names(values))


def describe_toml_error(name: str, text: str, error: ValueError) -> str:
    """What is wrong with a text that is not TOML: with the line, and how texts are written."""
    if text.lstrip().startswith("{"):
        return f"{name} is JSON, and settings are TOML: [train] on a line, num_updates = 3 on the next"
    place = re.search(r"\(at line (\d+), column \d+\)$", str(error))
    line = text.split("\n")[int(place[1]) - 1].strip() if place else ""
    hint = '; a text is written "so"' if "Invalid value" in str(error) else ""
    return f"{name} is not valid TOML: {error}{f': {line:.120}' if line else ''}{hint}"


def _find_lines(text: str) -> Iterator[tuple[str, str]]:
    """The line of every plainly written key; only a hint for messages."""
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = re.sub(r"[\s\"']", "", header[1]) + "."
            yield table[:-1], f"line {number}"
        elif entry := _ENTRY.match(line):
            yield table + re.sub(r"[\s\"']", "", entry[1]), f"line {number}"


@lru_cache(maxsize=4096)  # the runs of a study have most of their settings in common
def _split_override(text: str) -> tuple[tuple[str, ...], str]:
    """The key (as its parts) and the text after the first `=`."""
    name, equals, raw = text.partition("=")
    try:
        found: Any = tomllib.loads(f"{name} = 0") if equals else None
    except tomllib.TOMLDecodeError:
        found = None
    if not found:
        raise ConfigError(f"{text!r} is not a setting; write key=value, such as train.group_size=8")
    key: list[str] = []
    while isinstance(found, dict):
        ((part, found),) = found.items()
        key.append(part)
    return tuple(key), raw


def _parse_override(text: str) -> tuple[tuple[str, ...], Any]:
    old, raw = _split_override(text)
    renamed = rename_key(".".join(old))
    key = old if renamed == ".".join(old) else tuple(renamed.split("."))
    value = rename_value(".".join(old), _parse_value(raw))
    if isinstance(value, dict):
        value = rename_inner_keys(renamed, value)
    setting = _find_setting(key)
    if setting is None or setting.path != key:
        return key, value
    if raw.strip() == "none" and setting.takes_none:
        return key, None
    # a run named 7 is named "7": where text is wanted, what was typed is the text
    if setting.takes_text and not isinstance(value, str):
        return key, raw.strip()
    return key, value


@lru_cache(maxsize=4096)
def _find_setting(key: tuple[str, ...]) -> Setting | None:
    return find_field(RunConfig, key)


def _parse_value(raw: str) -> Any:
    """A TOML value, or else the text itself; lists and tables are the caller's own."""
    value = _read_value(raw)
    return copy.deepcopy(value) if isinstance(value, dict | list) else value


@lru_cache(maxsize=4096)
def _read_value(raw: str) -> Any:
    """A TOML value, or else the text itself. A date is text: no setting is a date."""
    try:
        found = tomllib.loads(f"value = {raw}")
    except tomllib.TOMLDecodeError:
        return raw.strip()
    value = found["value"]
    is_date = isinstance(value, datetime.date | datetime.time)
    return raw.strip() if len(found) > 1 or is_date else value


def _set_value(values: dict[str, Any], key: tuple[str, ...], value: Any) -> None:
    for depth, part in enumerate(key[:-1], 1):
        inner = values[part] = {} if values.get(part) is None else values[part]
        if not isinstance(inner, dict):
            raise ConfigError(f"{'.'.join(key)}: {'.'.join(key[:depth])} is {inner!r}, which has no keys")
        values = inner
    values[key[-1]] = value


def _fill_defaults(defaults: BaseModel, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Given values, filled up with the defaults of their place.

    Setting one key of a table must not change the others, and a table may have other defaults in another
    place.
    """
    filled = {name: getattr(defaults, name) for name in type(defaults).model_fields}
    for name, value in changes.items():
        default = filled.get(name)
        if isinstance(default, BaseModel) and isinstance(value, Mapping):
            value = _fill_defaults(default, value)
        filled[name] = value
    return filled


def _explain_problems(error: ValidationError, places: Mapping[str, str]) -> list[str]:
    """Each problem once, in plain words."""
    problems: dict[str, None] = {}
    for found in error.errors(include_url=False):
        path = tuple(str(part) for part in found["loc"])
        key, words = describe_problem(RunConfig, found)
        place = _find_place(path, places)
        problems[f"{key}: {words}{place}" if key else words + place] = None
    return list(problems)


def _find_place(path: tuple[str, ...], places: Mapping[str, str]) -> str:
    for depth in range(len(path), 0, -1):
        if place := places.get(".".join(path[:depth])):
            return f" ({place})"
    inside = ".".join(path) + "."
    below = [place for key, place in places.items() if path and key.startswith(inside)]
    return f" ({below[0]})" if below else ""


def _list_problems(name: str, problems: Sequence[str]) -> str:
    prefix = f"{name}: " if name else ""
    if len(problems) == 1:
        return prefix + problems[0]
    return f"{prefix}{len(problems)} problems\n" + "\n".join(f"  {problem}" for problem in problems)
