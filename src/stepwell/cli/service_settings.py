"""Settings of a service from the command line: a file, options that override it, environments' options."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pydantic import BaseModel

Config = TypeVar("Config", bound="BaseModel")


def add_service_arguments(parser: argparse.ArgumentParser, port: int) -> None:
    """Add what every service takes: its settings file, where it listens, its keys and its log."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="TOML file with settings of the service; options on the command line override it",
    )
    parser.add_argument("--host", help="default 127.0.0.1; others need --keys")
    parser.add_argument("--port", type=int, help=f"default {port}; 0 for any free one")
    parser.add_argument("--keys", metavar="FILE", help="API keys, made by `stepwell serve key`")
    parser.add_argument("--access-log", metavar="FILE", help="one JSON object per request")


def add_env_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add which environments callers may use, and the options that only the host sets."""
    parser.add_argument(
        "--env",
        dest="envs",
        metavar="NAME",
        action="append",
        help=f"an environment to {verb} (may be repeated); default: all built-in ones",
    )
    parser.add_argument(
        "--set",
        dest="env_options",
        metavar="NAME.OPTION=VALUE",
        action="append",
        help="an option that only the host may set, such as multihop_qa.dataset=hotpot_dev.json",
    )


def collect_service_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The settings that `add_service_arguments` asks for; None where nothing was given."""
    return {"host": args.host, "port": args.port, "keys_file": args.keys, "access_log": args.access_log}


def collect_env_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The settings that `add_env_arguments` asks for; None where nothing was given."""
    return {
        "envs": None if args.envs is None else tuple(args.envs),
        "env_options": None if args.env_options is None else parse_host_options(args.env_options),
    }


def validate_settings(kind: type[Config], file: str | None, options: dict[str, Any]) -> Config:
    """The settings of a file, overridden by those of the command line."""
    from pydantic import ValidationError

    from stepwell.config.schema import describe_problem
    from stepwell.core.errors import ConfigError

    options = {field: value for field, value in options.items() if value is not None}
    try:
        return kind(**{**_read_settings(file), **options})
    except ValidationError as error:
        where, words = describe_problem(kind, error.errors(include_url=False)[0])
        raise ConfigError(f"{where}: {words}" if where else words) from error


def _read_settings(file: str | None) -> dict[str, Any]:
    import tomllib

    from stepwell.core.errors import ConfigError
    from stepwell.core.names import suggest_file

    if file is None:
        return {}
    try:
        return tomllib.loads(Path(file).expanduser().read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--config {file} cannot be read: {error}{suggest_file(file)}") from error


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
