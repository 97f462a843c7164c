"""Descriptions of settings: name, allowed values, default and meaning.

Everything is read from the pydantic models, so the reference page (`docs/configuration.md`, which a test
compares with `write_reference()`), the errors of `loading.py` and the models always agree.

    walk_settings(RunConfig)              every setting with its dotted path, in order
    find_field(RunConfig, ("train",))     what a path names: a table, a setting, or nothing
    suggest_key(RunConfig, path)        the name that was probably meant
    describe_problem(RunConfig, found)  a problem with a value, in words
"""

from __future__ import annotations

import itertools
import sys
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from stepwell.config.run import RunConfig
from stepwell.config.writing import format_toml
from stepwell.core.names import MIN_LIKENESS, measure_likeness, suggest_name

MARKER = "<!-- reference: written by stepwell.config.schema -->\n\n"
_LIMITS = {
    annotated_types.Ge: ("ge", "at least"),
    annotated_types.Gt: ("gt", "above"),
    annotated_types.Le: ("le", "at most"),
    annotated_types.Lt: ("lt", "below"),
    annotated_types.MinLen: ("min_length", "of a length of at least"),
}
_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "none",
    Any: "anything",
}
_NAMES_ELSEWHERE = {  # what other libraries call a setting
    "train.num_updates": "steps max_steps num_steps total_timesteps",
    "train.group_size": "num_generations rollouts_per_prompt",
    "train.tasks_per_update": "batch_size train_batch_size per_device_train_batch_size",
    "policy.model": "model_name model_path model_name_or_path",
    "policy.device": "gpu gpus num_gpus cuda",
    "policy.dtype": "bf16 fp16",
    "sampling.max_tokens": "max_new_tokens max_completion_length",
    "recipe.name": "algo algorithm",
    "recipe.kl_coef": "beta kl_beta",
    "engine.backend": "vllm use_vllm",
    "folder": "output_dir save_dir",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: `train.learning_rate`, a number above 0, by default 3e-4."""

    path: tuple[str, ...]
    info: FieldInfo
    default: Any

    @property
    def key(self) -> str:
        return ".".join(self.path)

    @property
    def allowed_values(self) -> str:
        """What it may hold, in words: `a whole number, at least 1, or none`."""
        kinds = list(_list_union_members(self.info.annotation))
        limits = [limit for item in self.info.metadata if (limit := _describe_limit(item))]
        words = [_describe_type(kind) for kind in kinds if kind is not type(None)]
        text = ", ".join([" or ".join(words), *limits])
        return f"{text}, or none" if type(None) in kinds else text

    @property
    def takes_none(self) -> bool:
        return _is_optional(self.info)

    @property
    def takes_text(self) -> bool:
        return str in _list_union_members(self.info.annotation)


def walk_settings(
    model: type[BaseModel], above: tuple[str, ...] = (), defaults: BaseModel | None = None
) -> Iterator[Setting]:
    """Every setting of a model and of the tables in it, in the order they are declared.

    `defaults` is the table when nothing is set: the same model can be in two places with different defaults.
    """
    defaults = model() if defaults is None else defaults
    for name, info in model.model_fields.items():
        path, value, table = (*above, name), getattr(defaults, name), find_table_model(info)
        if table is None or _is_optional(info):
            yield Setting(path, info, value)
        if table is not None:
            yield from walk_settings(table, path, value)


def find_table_model(info: FieldInfo) -> type[BaseModel] | None:
    """The model of a field that is a table, including an optional one."""
    for kind in _list_union_members(info.annotation):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def find_field(model: type[BaseModel], path: Sequence[str]) -> Setting | None:
    """The field at a dotted path; inside a free table (`env.options.size`) that of the table."""
    for depth, name in enumerate(path):
        info = model.model_fields.get(name)
        if info is None:
            return None
        table = find_table_model(info)
        if table is None or depth == len(path) - 1:
            return Setting(tuple(path[: depth + 1]), info, info.get_default(call_default_factory=True))
        model = table
    return None


def describe_problem(model: type[BaseModel], found: Any) -> tuple[str, str]:
    """The key and the words for one problem that pydantic found in the settings of a model."""
    path = tuple(str(part) for part in found["loc"])
    key = ".".join(path)
    if found["type"] == "extra_forbidden":
        return key, f"unknown key{suggest_key(model, path)}"
    if found["type"] == "missing":
        return key, "is missing"
    if found["type"] == "value_error":
        return key, str(found["ctx"]["error"])
    setting = find_field(model, path)
    if setting is None:
        return key, f"{found['msg']}, got {found['input']!r}"
    # in a union or a list pydantic appends the branch or item that failed: the field counts
    item = next((int(part) + 1 for part in path[len(setting.path) :] if part.isdigit()), None)
    if item and not path[-1].isdigit() and _find_item_table(model, setting.path) is not None:
        return key, f"{found['msg'][:1].lower()}{found['msg'][1:]}, got {found['input']!r}"
    got = f"; item {item} is" if item else ", got"
    value = found["input"]
    hint = _suggest_in_table(setting, value)
    hint = hint or suggest_name(str(value), _list_choices(setting.info.annotation))
    return setting.key, f"must be {setting.allowed_values}{got} {value!r}{hint}"


def _suggest_in_table(setting: Setting, value: Any) -> str:
    """The key inside a table that was probably meant by a value for the whole table."""
    table = find_table_model(setting.info)
    if table is not None and value is True:
        name, info = next(iter(table.model_fields.items()))
        return f"; set a key of it, such as {setting.key}.{name}={info.default}"
    names = ("name", "kind", "backend") if isinstance(value, str) and table is not None else ()
    chosen_by = next((name for name in names if table and name in table.model_fields), None)
    return f"; did you mean {setting.key}.{chosen_by}={value}?" if chosen_by else ""


def suggest_key(model: type[BaseModel], path: Sequence[str]) -> str:
    """The key that an unknown one probably means: most alike in spelling, preferably in the same table.

    `train.learnig_rate` -> `; did you mean train.optimizer.learning_rate?`. Equally near ones are all named.
    If none is in the typed table, the keys of that table are listed. In a list of tables only theirs count.
    """
    place = next((depth for depth, part in enumerate(path) if part.isdigit()), None)
    if place is not None and (item := _find_item_table(model, path[:place])) is not None:
        return suggest_name(path[-1], item.model_fields, "Known")
    for key, names in _NAMES_ELSEWHERE.items():
        if path[-1] in names.split() and find_field(model, key.split(".")):
            return f"; did you mean {key!r}?"
    keys = [setting.path for setting in walk_settings(model)]
    known = dict.fromkeys(key[:depth] for key in keys for depth in range(1, len(key) + 1))
    scores = {key: _measure_likeness(tuple(path), key) for key in known}
    best = max(scores.values())
    near = " or ".join(repr(".".join(key)) for key in known if scores[key] == best)
    guess = f"; did you mean {near}?" if best > 0 else ""
    above = tuple(path[:-1])
    is_near = best > 0 and (
        not above or any(key[: len(above)] == above for key in known if scores[key] == best)
    )
    table = model if not above else _find_table(model, above)
    if is_near or table is None:
        return guess
    where = f" in {'.'.join(above)}" if above else ""
    return f"{guess or '.'} Known{where}: {', '.join(table.model_fields)}"


def _find_table(model: type[BaseModel], path: tuple[str, ...]) -> type[BaseModel] | None:
    found = find_field(model, path)
    return find_table_model(found.info) if found is not None and found.path == path else None


def _find_item_table(model: type[BaseModel], path: Sequence[str]) -> type[BaseModel] | None:
    """The model of the tables in a list."""
    found = find_field(model, path)
    items = get_args(found.info.annotation) if found is not None else ()
    return next((item for item in items if isinstance(item, type) and issubclass(item, BaseModel)), None)


def _measure_likeness(typed: tuple[str, ...], key: tuple[str, ...]) -> float:
    spelling = measure_likeness(typed[-1], key[-1])
    pairs = zip(typed, key, strict=False)
    shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    is_sibling = typed[:-1] == key[:-1]
    return 0.0 if spelling < MIN_LIKENESS else spelling + 0.1 * shared + 0.05 * is_sibling


def write_reference() -> str:
    """Every table and key of a run's configuration as markdown."""
    return "\n".join(_write_sections(RunConfig, (), RunConfig())).rstrip() + "\n"


def _write_sections(model: type[BaseModel], above: tuple[str, ...], defaults: BaseModel) -> Iterator[str]:
    yield f"## `[{'.'.join(above)}]`" if above else "## Top level"
    yield ""
    yield (model.__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")
    yield ""
    yield "| key | holds | default | meaning |"
    yield "|---|---|---|---|"
    tables = []
    for name, info in model.model_fields.items():
        path, value, table = (*above, name), getattr(defaults, name), find_table_model(info)
        if table is not None:
            tables.append((table, path, table() if value is None else value))
        if table is None or _is_optional(info):
            yield _write_row(Setting(path, info, value))
    yield ""
    for table, path, inner in tables:
        yield from _write_sections(table, path, inner)


def _write_row(setting: Setting) -> str:
    table = find_table_model(setting.info)
    held = f"table `[{setting.key}]`, or none" if table else setting.allowed_values
    cells = (
        f"`{setting.path[-1]}`",
        held,
        f"`{_format_value(setting.default)}`",
        setting.info.description or "",
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _format_value(value: Any) -> str:
    return "none" if value is None else format_toml(value)


def _list_union_members(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of a union, or the one type there is."""
    is_union = get_origin(annotation) in (typing.Union, types.UnionType)
    return get_args(annotation) if is_union else (annotation,)


def _is_optional(info: FieldInfo) -> bool:
    return type(None) in _list_union_members(info.annotation)


def _list_choices(annotation: Any) -> list[str]:
    """The texts that a setting may hold, if they are few and named."""
    kinds = (kind for kind in _list_union_members(annotation) if get_origin(kind) is Literal)
    return [str(choice) for kind in kinds for choice in get_args(kind)]


def _describe_type(kind: Any) -> str:
    origin = get_origin(kind)
    if origin is typing.Annotated:
        return _describe_annotated(*get_args(kind))
    if origin is Literal:
        choices = [format_toml(choice) for choice in get_args(kind)]
        return f"one of {', '.join(choices)}" if len(choices) > 1 else choices[0]
    if origin in (tuple, list):
        return _list_of(get_args(kind)[0])
    if origin is dict:
        return "a table"
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return "a table"
    return _WORDS.get(kind, getattr(kind, "__name__", str(kind)))


def _describe_annotated(kind: Any, *notes: Any) -> str:
    """A type with limits of its own: `a whole number, at least 1`."""
    items = [item for note in notes for item in (note.metadata if isinstance(note, FieldInfo) else [note])]
    return ", ".join([_describe_type(kind), *(limit for item in items if (limit := _describe_limit(item)))])


def _list_of(kind: Any) -> str:
    words = _describe_type(kind).removeprefix("a ")
    return f"a list of {words}s" if words == "table" else f"a list of {words}"


def _describe_limit(item: Any) -> str | None:
    for kind, (attribute, words) in _LIMITS.items():
        if isinstance(item, kind):
            return f"{words} {getattr(item, attribute):g}"
    return None


def update_reference(page: str) -> str:
    """A page with the present reference after its marker."""
    return page.partition(MARKER)[0] + MARKER + write_reference()


if __name__ == "__main__":  # python -m stepwell.config.schema docs/configuration.md
    _page = Path(sys.argv[1])
    _page.write_text(update_reference(_page.read_text(encoding="utf-8")), encoding="utf-8")
