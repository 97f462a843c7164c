"""Options of an environment that only its host may set.

An option that names a file, a folder, a URL or a module, or that makes the host build and store data, is a
*host option*. Users who run the environment in their own process may set it. Callers of an environment
service may not: the service refuses it, and the host sets it at startup (`stepwell serve envs --set
multihop_qa.dataset=hotpot_dev.json`).

    class MultihopQAOptions(Settings):
        dataset: str | None = declare_host_option(None, description="a file of published questions")

Invariants
* The declaration is part of the option's schema (`host_only`), and nowhere else.
* An undeclared option that looks like a host option is treated as one. To leave such an option to callers, an
  environment uses `declare_host_option(…, host_only=False)`.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any, get_args, get_origin

from pydantic import AnyUrl, Field
from pydantic.fields import FieldInfo

from stepwell.config.base import Settings
from stepwell.core.user_objects import name_object

HOST_ONLY = "host_only"
_NAMES = frozenset(
    (
        "path", "paths", "file", "files", "folder", "folders", "dir", "directory", "url", "urls", "uri",
        "host", "hosts", "endpoint", "address", "server", "module", "modules", "import", "class", "kwargs",
        "dataset", "snapshot", "checkpoint", "weights", "command",
    )
)  # fmt: skip
_WORDS = re.compile(
    r"\b(files?|folders?|paths?|urls?|https?|modules?|director(y|ies)|jsonl)\b", re.IGNORECASE
)


def declare_host_option(default: Any, *, host_only: bool = True, **field: Any) -> Any:
    """Declare an environment option that only the host may set."""
    return Field(default, json_schema_extra={HOST_ONLY: host_only}, **field)


def list_host_options(kind: type[Settings]) -> tuple[str, ...]:
    """The host options: declared ones, and undeclared ones that look like host options."""
    return tuple(name for name, field in kind.model_fields.items() if _is_host_option(name, field))


def find_undeclared_options(kind: type[Settings]) -> tuple[str, ...]:
    """Options that look like host options but are not declared either way."""
    fields = kind.model_fields.items()
    return tuple(
        name
        for name, field in fields
        if _find_declaration(field) is None and _looks_like_host_option(name, field)
    )


def _is_host_option(name: str, field: FieldInfo) -> bool:
    declared = _find_declaration(field)
    return _looks_like_host_option(name, field) if declared is None else declared


def _find_declaration(field: FieldInfo) -> bool | None:
    extra = field.json_schema_extra
    return bool(extra[HOST_ONLY]) if isinstance(extra, dict) and HOST_ONLY in extra else None


def _looks_like_host_option(name: str, field: FieldInfo) -> bool:
    types = _list_types(field.annotation)
    if any(getattr(item, "func", None) is name_object for item in field.metadata):
        return True  # an `ObjectName`: it names a module
    if any(isinstance(type_, type) and issubclass(type_, (PurePath, AnyUrl)) for type_ in types):
        return True
    takes_text = bool(types & {str, bytes, dict, Any})
    named = not _NAMES.isdisjoint(name.lower().split("_"))
    return takes_text and (named or _WORDS.search(field.description or "") is not None)


def _list_types(annotation: Any) -> set[Any]:
    """The plain types inside an annotation; none for a `Literal`, whose values are fixed."""
    if get_origin(annotation) is None:
        return {annotation}
    found = {get_origin(annotation)}
    for part in get_args(annotation):
        if not isinstance(part, (str, int)) or isinstance(part, type):
            found |= _list_types(part)
    return found
