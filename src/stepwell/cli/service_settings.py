"""Settings of a service from the command line: a file, options that override it, environments' options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pydantic import BaseModel

Config = TypeVar("Config", bound="BaseModel")


def validate_settings(kind: type[Config], file: str | None, given: dict[str, Any]) -> Config:
    """The settings of a file, overridden by those of the command line."""
    from pydantic import ValidationError

    from stepwell.config.schema import describe_problem
    from stepwell.core.errors import ConfigError

    given = {field: value for field, value in given.items() if value is not None}
    try:
        return kind(**{**_read_settings(file), **given})
    except ValidationError as error:
        where, words = describe_problem(kind, error.errors(include_url=False)[0])
        raise ConfigError(f"{where}: {words}" if where else words) from error


def _read_settings(file: str | None) -> dict[str, Any]:
    import tomllib

    from stepwell.core.errors import ConfigError

    if file is None:
        return {}
    try:
        return tomllib.loads(Path(file).expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--config {file} cannot be read: {error}") from error


def parse_host_options(texts: list[str]) -> dict[str, dict[str, Any]]:
    """Parse `shop.size=tiny` into options by environment. Names may contain dots, options may not."""
    from stepwell.config.loading import parse_options
    from stepwell.core.errors import ConfigError

    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        name, dot, option = key.rpartition(".")
        if not (equals and dot and name and option):
            raise ConfigError(f"--set {text}: write NAME.OPTION=VALUE, such as shop.size=tiny")
        found.setdefault(name, {}).update(parse_options([f"{option}={value}"]))
    return found
